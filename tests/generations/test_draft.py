"""Shards of a generation in progress, whoever of its builders dies."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from realm_jax.generations.store import GenerationStore
from realm_jax.generations.vectors import ShardLayout
from realm_jax.storage.staging import DamagedFileError
from tests.generations.conftest import flip

_LAYOUT = ShardLayout.of(40, 4, dtype="float32", max_rows=8)


def _draft(parent):
  return GenerationStore(parent).draft(500, "abc", _LAYOUT)


def _put(draft, shard):
  rows = draft.layout.rows(shard)
  vectors = np.repeat(rows[:, None], 4, axis=1).astype(np.float32)
  # Of two ages, so that a shard has a file of steps, too.
  draft.add(shard, vectors, 500 - rows % 2, seconds=1.0)


def do_all(parent):
  """Embeds what is missing."""
  draft = _draft(parent)
  for shard in draft.missing():
    _put(draft, shard)


def _contents(parent):
  """The bytes of the vectors, by file."""
  draft = _draft(parent)
  assert [shard.rows for shard in draft.shards()] == [8] * 5
  assert draft.seconds() == 5.0
  with draft.local() as directory:
    return {
      file.path: (directory / file.path).read_bytes()
      for file in draft.files(directory)
    }


def test_what_one_process_writes_the_others_see(tmp_path):
  one, two = _draft(tmp_path), _draft(tmp_path)
  assert one.missing() == two.missing() == [0, 1, 2, 3, 4]
  _put(one, 3)
  assert one.missing() == two.missing() == [0, 1, 2, 4]
  with pytest.raises(DamagedFileError, match="00000-of-00005"):
    two.shards()


@pytest.mark.parametrize("what", ["vectors", "steps", "cut", "gone"])
def test_a_damaged_shard_is_dropped_and_embedded_again(tmp_path, what):
  do_all(tmp_path)
  wanted = _contents(tmp_path)
  draft, other = _draft(tmp_path), _draft(tmp_path)
  assert other.missing() == []
  name = (
    _LAYOUT.name(3).replace("embeddings", "steps")
    if what == "steps"
    else _LAYOUT.name(3)
  )
  path = Path(draft.folder / name)
  if what == "gone":
    path.unlink()
  elif what == "cut":
    path.write_bytes(path.read_bytes()[:-1])
  else:
    flip(path)
  if what != "gone":
    assert draft.missing() == []
    with pytest.raises(DamagedFileError, match=name), draft.local():
      pass
  # The process that embeds it, which has seen the record before, learns of it.
  assert draft.missing() == other.missing() == [3]
  _put(other, 3)
  assert _contents(tmp_path) == wanted


def test_only_what_is_published_is_listed_and_half_an_index_goes(tmp_path):
  do_all(tmp_path)
  draft = _draft(tmp_path)
  (draft.folder / "scann").mkdir()
  (draft.folder / "scann" / "half").write_text("half")
  (draft.folder / "other.npy").write_text("half")
  with draft.local() as directory:
    assert not (directory / "scann").exists()
    assert not (directory / "other.npy").exists()
    (directory / "scann").mkdir()
    (directory / "scann" / "tree").write_text("whole")
    files = draft.files(directory)
  assert [file.path for file in files[10:]] == ["scann/tree"]


# A builder is killed at its first call into the file system, at its fourth, …
# until one survives; a shard takes some twenty.
_KILLED = """
import sys
from pathlib import Path
from tests.generations.test_draft import do_all
from tests.killed_at_each_call import survives

calls = 0
while not survives(
  lambda: do_all(Path(sys.argv[1], f"killed-{calls:03d}")), calls=calls
):
  calls += 3
"""


@pytest.mark.slow
def test_killed_at_any_call_it_goes_on_with_what_is_there(
  tmp_path, project_dir
):
  subprocess.run(
    [sys.executable, "-c", _KILLED, tmp_path],
    check=True,
    cwd=project_dir,
    timeout=240,
  )
  do_all(tmp_path / "alone")
  wanted = _contents(tmp_path / "alone")
  attempts = sorted(tmp_path.glob("killed-*"))
  assert len(attempts) > 20
  kept = []
  for path in attempts:
    kept.append(5 - len(_draft(path).missing()))
    do_all(path)
    assert _contents(path) == wanted
    assert not [n for n in os.listdir(_draft(path).folder) if n[0] == "."]
  # What was done is kept, up to the shard at which it died.
  assert kept == sorted(kept)
  assert kept[0] == 0 and kept[-1] == 5 and len(set(kept)) == 6
