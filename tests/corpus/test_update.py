"""An update: what comes, goes and stays."""

import errno
import json
import secrets
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from realm_jax.corpus import CorpusError, InputError, manifest
from realm_jax.corpus import update as update_module
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.manifest import files_of
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.storage.atomic import TargetError, staging_directory
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.storage.paths import upload_directory
from tests.corpus.conftest import write_lines
from tests.corpus.updated import ROWS, article, contents, require_consistent


def test_an_update_is_what_a_build_of_the_changed_text_is(
  corpus, build, update
):
  changed = {row["id"]: row for row in ROWS}
  changed["d3"] = article("d3", seed=103)
  changed["d4"] = {**ROWS[4], "url": "u:4"}
  changed["d6"] = {**ROWS[6], "title": "velt"}
  changed["new"] = article("new", seed=200)
  del changed["d0"], changed["d7"], changed["d8"]
  gone = [{"id": name, "remove": True} for name in ("d0", "d7", "d8")]
  given = [changed[name] for name in ("d3", "d4", "d5", "d6", "new")]
  summary = update(given + gone)
  assert (summary.added, summary.replaced) == (1, 3)
  assert (summary.removed, summary.unchanged) == (3, 1)
  updated = Corpus.open(corpus.source)
  assert updated.version == summary.version == 2
  assert "replaced" in summary.table()
  assert updated.summary == json.loads(json.dumps(summary.to_json()))
  require_consistent(updated)
  rebuilt = build(changed.values(), folder="rebuilt", block_length=16)
  assert contents(updated) == contents(rebuilt)
  found = manifest.read(updated.source)
  expected = manifest.read(rebuilt.source)
  for total in ("num_blocks", "num_documents", "num_tokens", "vocabulary"):
    assert found[total] == expected[total]


def test_what_did_not_change_makes_no_version(corpus, update):
  files = sorted(Path(corpus.source).rglob("*"))
  summary = update([ROWS[1], ROWS[2]])
  assert (summary.unchanged, summary.changes_something) == (2, False)
  assert summary.version == Corpus.open(corpus.source).version == 1
  assert update([]).version == 1
  assert sorted(Path(corpus.source).rglob("*")) == files


LISTED = {**ROWS[3], "title": "List of Velt"}


def test_an_update_drops_the_titles_that_the_build_dropped(build, update):
  corpus = build(ROWS, block_length=16, drop_titles=["wikipedia"])
  assert update([LISTED]).removed == 1
  newest = Corpus.open(corpus.source)
  assert newest.rows_of(np.array([block_id("corpus", "d3", 0)])) == NULL_ROW
  summary = update([LISTED, article("new", seed=1)])
  assert (summary.added, summary.new.skipped) == (
    1,
    {"title with 'List of'": 1},
  )
  # An update may change the setting, also for those after it.
  assert update([LISTED], drop_titles=["Outline"]).added == 1
  assert update([{**ROWS[4], "title": "List of Ada"}]).replaced == 1
  assert update([{**ROWS[5], "title": "Outline of Ada"}]).removed == 1


def test_an_update_adds_kinds_of_salient_spans(build, update):
  corpus = build(ROWS, block_length=16)
  assert corpus.span_kinds == ("date", "name")
  text = {"title": "", "text": "Ada was in Velt."}
  update(
    [{"id": "new", **text}],
    tagger=lambda text, title: [(0, 3, "person"), (11, 15, "name")],
  )
  newest = Corpus.open(corpus.source)
  assert newest.span_kinds == ("date", "name", "person")
  row = newest.rows_of(np.array(block_id("corpus", "new", 0))).item()
  assert newest.block(row).salient_span_kinds.tolist() == [2, 1]
  assert newest.block(0).salient_span_kinds.tolist() == (
    corpus.block(0).salient_span_kinds.tolist()
  )


@pytest.mark.parametrize(
  "rows, message",
  [
    ([{"title": "Velt", "text": "Ada."}], r"changes.jsonl:3: no 'id'; wanted"),
    ([{"id": "d1", "text": "Ada."}], "no 'title' among"),
    ([{"id": "d1", "remove": "yes"}], "'remove' is 'yes' among"),
    ([{**ROWS[1], "remove": True}], "'remove' is True among 'id', 'title'"),
    ([{"id": "d99", "remove": True}], "no document has the id 'd99' in ver"),
    ([ROWS[1], {"id": "d1", "remove": True}], "has the same id as"),
  ],
)
def test_a_line_that_cannot_be_done_changes_nothing(
  corpus, update, rows, message
):
  good = [article("new", seed=1), {"id": "d5", "remove": True}]
  with pytest.raises(InputError, match=message):
    update(good + rows)
  assert Corpus.open(corpus.source).fingerprint == corpus.fingerprint
  summary = update(good + rows, skip_bad_lines=True)
  assert sum(summary.new.skipped.values()) == 1
  assert (summary.added, summary.removed) == (1, 1)


def test_an_update_of_a_corpus_without_duplicates(build, update):
  twice = "Ada was in Velt."
  rows = [
    {"id": "a", "title": "", "text": twice},
    {"id": "b", "title": "", "text": f"{twice} The river was by Velt Stone."},
    {"id": "c", "title": "", "text": twice},
  ]
  corpus = build(rows, block_length=10, remove_duplicates=True)
  assert [corpus.block(row).name for row in range(2)] == ["a:0", "b:1"]
  # One that lost its first block is still known, and still the same.
  assert update([rows[1]]).unchanged == 1
  assert update([{"id": "b", "remove": True}]).blocks_removed == 1
  newest = Corpus.open(corpus.source)
  assert newest.num_blocks == 1
  assert manifest.read(newest.source)["num_documents"] == 1
  assert newest.rows_of(np.array(block_id("corpus", "b", 1))) == NULL_ROW
  # Nothing is left of c, so that it is new.
  assert update([rows[2]]).added == 1
  require_consistent(Corpus.open(corpus.source))


# --- Versions ------------------------------------------------------------


def test_a_version_goes_on_beside_the_one_after_it(corpus, update):
  before = contents(Corpus.open(corpus.source))
  assert corpus.newest() is corpus
  update([{"id": "d1", "remove": True}, article("d2", seed=99)])
  # Not a file was read of it yet.
  assert contents(corpus) == before
  again = Corpus.open(corpus.source, version=1)
  assert (again.version, again.fingerprint) == (1, corpus.fingerprint)
  newest = corpus.newest()
  assert newest.version == 2
  # Each is opened once.
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
    staging_directory(corpus.source),
    pytest.raises(TargetError, match="another process is building"),
  ):
    update([article("new", seed=1)])
  assert update([article("new", seed=1)]).version == 2


@pytest.mark.slow
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

  upload = update_module._move_files

  def slow(*arguments):
    monkeypatch.setattr(update_module, "_move_files", upload)
    assert update([article("new", seed=1)]).version == 2
    upload(*arguments)

  monkeypatch.setattr(update_module, "_move_files", slow)
  with pytest.raises(CorpusError, match="another process has updated"):
    update([{"id": "d1", "remove": True}])
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
  assert manifest.earlier_versions(corpus.source) == [1, 2, 3, 4]
  update([{"id": "n0", "remove": True}], keep_versions=2)
  assert manifest.earlier_versions(corpus.source) == [5]
  for version in (5, 6):
    require_consistent(Corpus.open(corpus.source, version=version))
  with pytest.raises(CorpusError, match=r"has versions \[5, 6\]"):
    Corpus.open(corpus.source, version=4)
  # What only they had is gone from the disk, and its names are not reused.
  update([{"id": "n1", "remove": True}], keep_versions=1)
  named = {file.path for file in files_of(manifest.read(corpus.source))}
  for path in (*corpus.source.glob("shard-*/*"), *corpus.source.glob("rem*/*")):
    assert str(path.relative_to(corpus.source)) in named


def test_a_full_disk_says_what_helps_an_update(corpus, update, monkeypatch):
  def full(*args):
    raise OSError(errno.EFBIG, "File too large")

  monkeypatch.setattr(update_module.os, "replace", full)
  with pytest.raises(DiskFullError, match=r"is full .*: free some space$"):
    update([article("new", seed=1)])
  monkeypatch.undo()
  assert Corpus.open(corpus.source).version == 1


_UPDATE_AND_DIE = """
import os, signal, sys
from realm_jax.corpus.update import update_corpus
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
  corpus, tmp_path, command_server
):
  """At moments between the first file that is moved and the end."""
  rows = [article("new", seed=1), {"id": "d3", "remove": True}]
  lines = write_lines(tmp_path / "changes.jsonl", rows)
  nothing = str(write_lines(tmp_path / "none.jsonl", []))
  copies = [
    Path(shutil.copytree(corpus.source, tmp_path / f"copy{number}"))
    for number in range(4)
  ]
  done = command_server.run(
    [sys.executable, "-c", _UPDATE_AND_DIE, lines, *copies]
  )
  assert done.returncode == 0, done.stderr
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
      file.path.partition("/")[0]
      for file in files_of(manifest.read(after.source))
    }
    assert {p.name for p in copy.glob("shard-*")} <= named
    assert not (tmp_path / f".{copy.name}.building").exists()
  total, *codes = [int(code) for code in done.stdout.split()]
  assert total > len(copies)
  assert codes == [-signal.SIGKILL] * 3
  assert seen[1:] == sorted(seen[1:])
  assert set(seen[1:]) == {1, 2}
