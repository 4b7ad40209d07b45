"""Shards that several processes make together, whoever of them dies."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from realm_jax.generations.building import shared_work
from realm_jax.generations.building.shared_work import WorkGoneError, join
from realm_jax.generations.store.embeddings import ShardLayout
from realm_jax.generations.store.manifest import DamagedFileError

_LAYOUT = ShardLayout.of(40, 4, dtype="float32", max_rows=8)
_IDENTITY = {"parameters": "abc"}


def _joined(parent, *, step=500, identity=_IDENTITY):
  return join(parent, step=step, shards=_LAYOUT, identity=identity)


def _vectors(rows):
  return np.repeat(rows[:, None], 4, axis=1).astype(np.float32)


def _put(work, shard, step=500):
  rows = work.layout.rows(shard)
  # Of two ages, so that a shard has a file of steps, too.
  work.add(shard, _vectors(rows), step - rows % 2, seconds=1.0)


def do_all(parent, log=None):
  """Embeds until nothing is missing; says which shards it made."""
  with _joined(parent) as work:
    while work.missing():
      with work.claim_shard() as shard:
        if shard is not None:
          if log:
            with log.open("a") as file:
              file.write(f"{shard}\n")
            time.sleep(0.02)
          _put(work, shard)
          continue
      time.sleep(0.01)


def _placed(parent, target):
  """The bytes of the vectors, by file."""
  target.mkdir()
  with _joined(parent) as work, work.claim_publication() as ours:
    assert ours
    stored = work.link_into(target)
  assert [shard.rows for shard in stored.shards] == [8] * 5
  assert stored.seconds == 5.0
  assert {file.path for file in stored.files} == set(os.listdir(target))
  return {path.name: path.read_bytes() for path in target.iterdir()}


def test_shards_are_claimed_by_one_at_a_time_and_stay(tmp_path):
  with _joined(tmp_path) as one, _joined(tmp_path) as two:
    assert one.missing() == two.missing() == [0, 1, 2, 3, 4]
    with one.claim_shard() as first, two.claim_shard() as second:
      assert first is not None and second is not None and first != second
      _put(one, first)
    assert sorted({*two.missing(), first}) == [0, 1, 2, 3, 4]
    with one.claim_publication() as ours:
      assert not ours
  # Whoever comes again goes on with it.
  with _joined(tmp_path) as again:
    assert first not in again.missing()


def test_vectors_of_something_else_are_of_no_use(tmp_path):
  do_all(tmp_path)
  for identity in ({"parameters": "abd"}, {**_IDENTITY, "corpus": "x"}):
    with _joined(tmp_path, identity=identity) as work:
      assert len(work.missing()) == 5
  other = ShardLayout.of(40, 4, dtype="bfloat16", max_rows=8)
  with join(tmp_path, step=500, shards=other, identity=_IDENTITY) as work:
    assert len(work.missing()) == 5


def test_only_one_finishes_and_the_others_learn_of_it(tmp_path):
  do_all(tmp_path)
  with _joined(tmp_path) as one, _joined(tmp_path) as two:
    with one.claim_publication() as ours, two.claim_publication() as theirs:
      assert (ours, theirs) == (True, False)
      one.remove()
    with pytest.raises(WorkGoneError):
      two.missing()
    with pytest.raises(WorkGoneError), two.claim_shard():
      pass
    with pytest.raises(WorkGoneError):
      _put(two, 0)
  assert not list(tmp_path.iterdir())


def test_a_shard_that_is_cut_or_discarded_is_made_again(tmp_path):
  do_all(tmp_path)
  with _joined(tmp_path) as work:
    path = work.directory / _LAYOUT.name(3)
    path.write_bytes(path.read_bytes()[:-1])
    assert work.missing() == [3]
    work.discard(_LAYOUT.steps_name(1))
    assert work.missing() == [1, 3]
    (work.directory / _LAYOUT.name(2)).with_suffix(".json").write_text("{}")
    assert work.missing() == [1, 2, 3]
  do_all(tmp_path)
  with _joined(tmp_path) as work:
    assert work.missing() == []


def test_what_one_makes_for_all_is_made_once(tmp_path):
  made = []

  def make(path):
    made.append(path)
    path.write_text("plan")

  with _joined(tmp_path) as one, _joined(tmp_path) as two:
    assert one.make_once("plan", make, Path.read_text) == "plan"
    assert two.make_once("plan", make, Path.read_text) == "plan"
  assert len(made) == 1


def test_what_is_made_for_all_is_made_again_where_it_is_damaged(tmp_path):
  def read(path):
    return int(path.read_text())

  with _joined(tmp_path) as work:
    path = work.directory / "plan"
    path.write_text("7x")
    assert work.make_once("plan", lambda path: path.write_text("7"), read) == 7
    assert work.make_once("plan", lambda path: path.write_text("8"), read) == 7
    with pytest.raises(ValueError, match="9y"):
      path.unlink()
      work.make_once("plan", lambda path: path.write_text("9y"), read)


def test_shards_are_held_against_their_checksums(tmp_path):
  do_all(tmp_path)
  with _joined(tmp_path) as work:
    assert not work.discard_damaged()
    path = work.directory / _LAYOUT.name(3)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert work.missing() == []
    assert work.discard_damaged()
    assert work.missing() == [3]
    with pytest.raises(DamagedFileError, match=_LAYOUT.name(3)):
      work.link_into(tmp_path)


def test_shards_stay_while_they_are_of_use_or_somebody_is_at_them(tmp_path):
  for step in (400, 500):
    with _joined(tmp_path, step=step):
      pass
  with _joined(tmp_path, identity={"parameters": "old"}):
    pass

  def folders():
    return sorted(path.name[:16] for path in tmp_path.glob(".shards-*"))

  assert folders() == [".shards-00000400", *[".shards-00000500"] * 2]
  shared_work.remove_obsolete(tmp_path, lambda step: True)
  assert len(folders()) == 3
  with _joined(tmp_path) as work, _joined(tmp_path, step=400):
    # Of 500 another checkpoint's go; 400's are of no use, but in use.
    shared_work.remove_obsolete(
      tmp_path, lambda step: step == 500, current=work.directory
    )
    assert folders() == [".shards-00000400", ".shards-00000500"]
  shared_work.remove_obsolete(tmp_path, lambda step: step == 500)
  assert folders() == [".shards-00000500"]


# One process dies at its second shard, and three others share what is left.
# They are forked here: where jax runs, as in the tests' own process, a fork
# may hang.
_TOGETHER = textwrap.dedent(
  """
  import os, sys
  from pathlib import Path
  from tests.generations.building import test_shared_work

  def fork(function, *arguments):
    child = os.fork()
    if not child:
      function(*arguments)
      os._exit(0)
    return child

  parent, log = Path(sys.argv[1]), Path(sys.argv[2])
  dead = fork(test_shared_work.die_at_the_second, parent)
  assert os.waitpid(dead, 0)[1] == 9
  for child in [fork(test_shared_work.do_all, parent, log) for _ in range(3)]:
    assert os.waitpid(child, 0)[1] == 0
  """
)


def die_at_the_second(parent):
  """Makes one shard, and ends by SIGKILL at the next."""
  with _joined(parent) as work:
    with work.claim_shard() as shard:
      _put(work, shard)
    with work.claim_shard() as shard:
      os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_processes_share_the_work_and_one_that_dies_loses_its_shard_alone(
  tmp_path,
):
  do_all(tmp_path / "alone")
  parent, log = tmp_path / "together", tmp_path / "log"
  subprocess.run(
    [sys.executable, "-c", _TOGETHER, parent, log],
    check=True,
    cwd=Path(__file__).parents[3],
    timeout=120,
  )
  made = log.read_text().split()
  assert len(made) == len(set(made)) == 4
  assert _placed(parent, tmp_path / "a") == _placed(
    tmp_path / "alone", tmp_path / "b"
  )


# Works alone, and kills itself with SIGKILL at the n-th call into the file
# system, for n = 0, 1, … until one survives. Each attempt is a fork.
_KILLED_AT_EVERY_CALL = textwrap.dedent(
  """
  import os, sys
  from pathlib import Path
  from tests.generations.building import test_shared_work

  WATCHED = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove"}

  def attempt(parent, n):
    calls = 0
    def audit(event, arguments):
      nonlocal calls
      if event in WATCHED:
        calls += 1
        if calls > n:
          os.kill(os.getpid(), 9)
    sys.addaudithook(audit)
    test_shared_work.do_all(parent)
    os._exit(0)

  n = 0
  while True:
    parent = Path(sys.argv[1]) / f"killed-{n:03d}"
    child = os.fork()
    if not child:
      attempt(parent, n)
    _, status = os.waitpid(child, 0)
    if status == 0:
      break
    # One in three will do: a shard takes some twenty calls.
    n += 3
  """
)


@pytest.mark.slow
def test_killed_at_any_call_it_goes_on_with_what_is_there(tmp_path):
  subprocess.run(
    [sys.executable, "-c", _KILLED_AT_EVERY_CALL, tmp_path],
    check=True,
    cwd=Path(__file__).parents[3],
    timeout=120,
  )
  do_all(tmp_path / "alone")
  wanted = _placed(tmp_path / "alone", tmp_path / "wanted")
  attempts = sorted(tmp_path.glob("killed-*"))
  assert len(attempts) > 20
  kept = []
  for path in attempts:
    with _joined(path) as work:
      kept.append(5 - len(work.missing()))
    do_all(path)
    assert _placed(path, path / "placed") == wanted
  # What was done is kept, up to the shard at which it died.
  assert kept == sorted(kept)
  assert kept[0] == 0 and kept[-1] == 5 and len(set(kept)) == 6
