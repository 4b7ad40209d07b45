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

from realm_jax.generations.building.shared_work import join
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
    assert two.is_removed()
    with pytest.raises(FileNotFoundError), two.claim_shard():
      pass
    with pytest.raises(FileNotFoundError):
      _put(two, 0)
  assert not list(tmp_path.iterdir())


def test_a_shard_that_is_cut_or_discarded_is_made_again(tmp_path):
  do_all(tmp_path)
  with _joined(tmp_path) as work:
    path = work.directory / _LAYOUT.name(3)
    path.write_bytes(path.read_bytes()[:-1])
    assert work.missing() == [3]
    (work.directory / _LAYOUT.steps_name(1)).unlink()
    assert work.missing() == [1, 3]
    (work.directory / _LAYOUT.name(2)).with_suffix(".json").write_text("{}")
    assert work.missing() == [1, 2, 3]
  do_all(tmp_path)
  with _joined(tmp_path) as work:
    assert work.missing() == []


def test_what_one_makes_for_all_is_made_once(tmp_path):
  made = []

  def make():
    made.append(len(made))
    return np.arange(3.0)

  with _joined(tmp_path) as one, _joined(tmp_path) as two:
    for work in (one, two):
      np.testing.assert_array_equal(work.make_once("x", make), [0, 1, 2])
  assert len(made) == 1


def test_what_is_made_for_all_is_made_again_where_it_is_damaged(tmp_path):
  vectors = np.random.default_rng(0).standard_normal((9, 8))
  with _joined(tmp_path) as work:
    work.make_once("x", lambda: vectors)
    path = work.directory / "x.npz"
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    cut = [content[:place] for place in (0, 1, len(content) - 100)]
    for damaged in [*cut, *(_flipped(content, rng) for _ in range(50))]:
      path.write_bytes(damaged)
      found = work.make_once("x", lambda: vectors)
      # Some bits of an archive mean nothing to a reader.
      np.testing.assert_array_equal(found, vectors)


def _flipped(content, rng):
  data = bytearray(content)
  data[rng.integers(len(data))] ^= 1 << rng.integers(8)
  return data


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
  with _joined(tmp_path) as work:
    with _joined(tmp_path, step=400):
      # Of 500 another checkpoint's go; 400's are of no use, but in use.
      work.remove_obsolete(lambda step: False)
      assert folders() == [".shards-00000400", ".shards-00000500"]
    work.remove_obsolete(lambda step: step == 400)
    assert len(folders()) == 2
    work.remove_obsolete(lambda step: False)
    assert folders() == [".shards-00000500"]


# One process dies at its second shard, and three others share what is left.
# Then one works alone, and kills itself with SIGKILL at the n-th call into the
# file system, for n = 0, 3, … until one survives. All are forks of one process:
# where jax runs, as in the tests' own process, a fork may hang.
_PROCESSES = textwrap.dedent(
  """
  import os, sys
  from pathlib import Path
  from tests.generations.building import test_shared_work

  WATCHED = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove"}

  def fork(function, *arguments):
    child = os.fork()
    if not child:
      function(*arguments)
      os._exit(0)
    return child

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

  root = Path(sys.argv[1])
  parent, log = root / "together", root / "log"
  dead = fork(test_shared_work.die_at_the_second, parent)
  assert os.waitpid(dead, 0)[1] == 9
  for child in [fork(test_shared_work.do_all, parent, log) for _ in range(3)]:
    assert os.waitpid(child, 0)[1] == 0
  n = 0
  # One call in three will do: a shard takes some twenty.
  while os.waitpid(fork(attempt, root / f"killed-{n:03d}", n), 0)[1]:
    n += 3
  """
)


def die_at_the_second(parent):
  """Makes one shard, and ends by SIGKILL at the next."""
  with _joined(parent) as work:
    with work.claim_shard() as shard:
      _put(work, shard)
    with work.claim_shard() as shard:
      os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  """What the processes left, and the vectors of one that worked alone."""
  root = tmp_path_factory.mktemp("processes")
  subprocess.run(
    [sys.executable, "-c", _PROCESSES, root],
    check=True,
    cwd=Path(__file__).parents[3],
    timeout=240,
  )
  do_all(root / "alone")
  return root, _placed(root / "alone", root / "wanted")


@pytest.mark.slow
def test_processes_share_the_work_and_one_that_dies_loses_its_shard_alone(
  processes,
):
  root, wanted = processes
  made = (root / "log").read_text().split()
  assert len(made) == len(set(made)) == 4
  assert _placed(root / "together", root / "placed") == wanted


@pytest.mark.slow
def test_killed_at_any_call_it_goes_on_with_what_is_there(processes):
  root, wanted = processes
  attempts = sorted(root.glob("killed-*"))
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
