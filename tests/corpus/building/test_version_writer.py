"""Versions stand side by side, and appear whole or not at all."""

import errno
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from realm_jax.corpus import versions
from realm_jax.corpus.building import version_writer
from realm_jax.corpus.building.block_identity import block_id
from realm_jax.corpus.building.update import update_corpus
from realm_jax.corpus.building.version_writer import VersionWriter
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.manifest import files_of
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.files.local_disk.disk_full import DiskFullError
from realm_jax.files.whole.whole_directory import TargetError, upload_directory
from tests.corpus.conftest import write_lines
from tests.corpus.updated import ROWS, article, contents, require_consistent


def test_the_version_before_goes_on_where_it_is_open(corpus, update):
  before = contents(Corpus.open(corpus.source))
  update([{"id": "d1", "remove": True}, article("d2", seed=99)])
  # Not a file was read of it yet.
  assert contents(corpus) == before
  again = Corpus.open(corpus.source, fingerprint=corpus.fingerprint)
  assert (again.version, again.fingerprint) == (1, corpus.fingerprint)
  assert contents(again) == before


def test_one_version_finds_another_and_opens_it_once(corpus, update):
  assert corpus.newest() is corpus
  update([article("d2", seed=99)])
  newest = corpus.newest()
  assert newest.version == 2
  assert corpus.newest() is newest
  assert newest.at(1, corpus.fingerprint) is corpus
  assert newest.has_version(1, corpus.fingerprint)
  assert not newest.has_version(2, corpus.fingerprint)
  with pytest.raises(
    CorpusError, match=r"no corpus version 3 .*versions \[1, "
  ):
    newest.at(3, "0" * 64)


def test_another_build_in_its_place_is_no_version(corpus, build):
  rebuilt = build(ROWS, block_length=24, overwrite=True)
  with pytest.raises(CorpusError, match="was built again, with another"):
    corpus.at(rebuilt.version, rebuilt.fingerprint)
  with pytest.raises(CorpusError, match="it was pruned, or the corpus"):
    rebuilt.at(1, corpus.fingerprint)


def test_a_second_update_at_once_is_refused(corpus, update):
  with (
    VersionWriter.open(corpus.source, blocks_per_shard=5),
    pytest.raises(TargetError, match="another process is building"),
  ):
    update([article("new", seed=1)])
  assert update([article("new", seed=1)]).version == 2


def test_on_an_object_store_the_faster_update_stands(
  built, object_store, tmp_path, monkeypatch
):
  """There nobody can be kept out, and nothing renamed."""
  monkeypatch.setenv("REALM_JAX_CACHE_DIR", str(tmp_path / "cache"))
  source = epath.Path(object_store.path(secrets.token_hex(4))) / "corpus"
  upload_directory(Path(built), source)
  corpus = Corpus.open(source)

  def update(rows, **arguments):
    lines = write_lines(tmp_path / "changes.jsonl", rows)
    return update_corpus([str(lines)], source, **arguments)

  with VersionWriter.open(source, blocks_per_shard=5) as slower:
    slower.existing.remove(slower.existing.find("d1"))
    assert update([article("new", seed=1)]).version == 2
    with pytest.raises(CorpusError, match="another process has updated"):
      slower.finish(summary={})
  faster = corpus.newest()
  require_consistent(faster)
  assert faster.num_blocks == corpus.num_blocks + len(
    [name for name in contents(faster).values() if name[0].startswith("new:")]
  )
  assert update([{"id": "d1", "remove": True}], keep_versions=1).version == 3
  require_consistent(corpus.newest())


def test_the_last_versions_stay_if_so_told(corpus, update):
  gone = [row["id"] for row in ROWS[:4]]
  for number, name in enumerate(gone):
    update([{"id": name, "remove": True}, article(f"n{number}", seed=number)])
  assert versions.earlier_versions(corpus.source) == [1, 2, 3, 4]
  update([{"id": "n0", "remove": True}], keep_versions=2)
  assert versions.earlier_versions(corpus.source) == [5]
  for version in (5, 6):
    require_consistent(Corpus.open(corpus.source, version=version))
  with pytest.raises(CorpusError, match=r"has versions \[5, 6\]"):
    Corpus.open(corpus.source, version=4)
  # What only they had is gone from the disk, and its names are not reused.
  update([{"id": "n1", "remove": True}], keep_versions=1)
  named = set(files_of(versions.read(corpus.source)))
  for path in (*corpus.source.glob("shard-*/*"), *corpus.source.glob("rem*/*")):
    assert str(path.relative_to(corpus.source)) in named


def test_a_full_disk_says_what_helps_an_update(corpus, update, monkeypatch):
  def full(*args):
    raise OSError(errno.EFBIG, "File too large")

  monkeypatch.setattr(version_writer.os, "replace", full)
  with pytest.raises(DiskFullError, match=r"is full .*: free some space$"):
    update([article("new", seed=1)])
  monkeypatch.undo()
  assert Corpus.open(corpus.source).version == 1


_UPDATE_AND_DIE = """
import os, signal, sys
from realm_jax.corpus.building.update import update_corpus
done = 0

def counted(function):
  def run(*args, **kwargs):
    global done
    if done == last:
      os.kill(os.getpid(), signal.SIGKILL)
    done += 1
    return function(*args, **kwargs)
  return run

os.replace, os.fsync = counted(os.replace), counted(os.fsync)
changes, *copies = sys.argv[1:]
last = None
for number, copy in enumerate(copies):
  if not os.fork():
    update_corpus([changes], copy)
    os._exit(done)
  code = os.waitstatus_to_exitcode(os.wait()[1])
  print(code, flush=True)
  # The first tells how many moments there are; the next is killed early, and
  # the others at the last of them.
  total = code if number == 0 else total
  last = 1 if number == 0 else total - len(copies) + number + 1
"""


@pytest.mark.slow
def test_a_kill_leaves_the_version_before_or_the_new_one(
  corpus, tmp_path, command_environment
):
  """At moments between the first file that is moved and the end."""
  rows = [article("new", seed=1), {"id": "d3", "remove": True}]
  lines = write_lines(tmp_path / "changes.jsonl", rows)
  nothing = str(write_lines(tmp_path / "none.jsonl", []))
  copies = [
    Path(shutil.copytree(corpus.source, tmp_path / f"copy{number}"))
    for number in range(8)
  ]
  done = subprocess.run(
    [sys.executable, "-c", _UPDATE_AND_DIE, lines, *copies],
    env=command_environment,
    check=True,
    timeout=120,
    capture_output=True,
    text=True,
  )
  before, seen = contents(corpus), []
  for copy in copies:
    left = Corpus.open(copy)
    left.verify()
    seen.append(left.version)
    if left.version == 1:
      assert contents(left) == before
      assert update_corpus([str(lines)], copy).version == 2
    after = Corpus.open(copy)
    assert after.rows_of(np.array([block_id("corpus", "d3", 0)])) == NULL_ROW
    # Nothing that no version names is left by the next update.
    update_corpus([nothing], copy)
    named = {
      name.partition("/")[0] for name in files_of(versions.read(after.source))
    }
    assert {p.name for p in copy.glob("shard-*")} <= named
    assert not (tmp_path / f".{copy.name}.building").exists()
  total, *codes = [int(code) for code in done.stdout.split()]
  assert total > len(copies)
  assert codes == [-signal.SIGKILL] * 7
  assert seen[1:] == sorted(seen[1:])
  assert set(seen[1:]) == {1, 2}
