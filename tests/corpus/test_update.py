"""An update: what comes, goes and stays."""

import json
import secrets
import shutil
import signal
import sys
from pathlib import Path

import pytest
from etils import epath

from realm_jax.corpus import CorpusError, InputError, manifest
from realm_jax.corpus import update as update_module
from realm_jax.corpus.manifest import files_of
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.storage.local_disk import DiskFullError
from realm_jax.storage.paths import upload_directory
from tests.corpus.conftest import ROWS, article, contents, require_consistent
from tests.full_disk import full_disk
from tests.json_lines import write_lines


def test_an_update_is_what_a_build_of_the_changed_text_is(
  corpus, build, update
):
  changed = {row["id"]: row for row in ROWS}
  changed["d3"] = article("d3", seed=103)
  changed["d4"] = {**ROWS[4], "url": "u:4"}
  changed["d6"] = {**ROWS[6], "title": "velt"}
  # Of a kind of salient spans that no other document has.
  changed["new"] = {"id": "new", "title": "", "text": "Ada was in 12 of Velt."}
  del changed["d0"], changed["d7"], changed["d8"]
  gone = [{"id": name, "remove": True} for name in ("d0", "d7", "d8")]
  rows = [changed[name] for name in ("d3", "d4", "d5", "d6", "new")]
  summary = update(rows + gone)
  assert (summary.added, summary.replaced) == (1, 3)
  assert (summary.removed, summary.unchanged) == (3, 1)
  updated = Corpus.open(corpus.source)
  assert corpus.span_kinds == ("date", "name")
  assert updated.span_kinds == ("date", "name", "number")
  assert updated.version == summary.version == 2
  assert "replaced" in summary.table()
  recorded = {**vars(summary), "new": vars(summary.new)}
  assert updated.summary == json.loads(json.dumps(recorded))
  require_consistent(updated)
  rebuilt = build(changed.values(), folder="rebuilt", block_length=16)
  assert contents(updated) == contents(rebuilt)
  record = manifest.read(updated.source)
  expected = manifest.read(rebuilt.source)
  for total in ("num_blocks", "num_documents", "num_tokens", "vocabulary"):
    assert record[total] == expected[total]


def test_what_did_not_change_makes_no_version(corpus, update):
  files = sorted(Path(corpus.source).rglob("*"))
  summary = update([ROWS[1], ROWS[2]])
  assert (summary.unchanged, summary.changes_something) == (2, False)
  assert summary.version == Corpus.open(corpus.source).version == 1
  assert update([]).version == 1
  assert sorted(Path(corpus.source).rglob("*")) == files


def test_a_line_that_cannot_be_done_changes_nothing(corpus, update):
  good = [article("new", seed=1), {"id": "d5", "remove": True}]
  removal = {"id": "d1", "remove": True}
  for rows, message in (
    ([{"title": "Velt", "text": "Ada."}], r"changes.jsonl:3: no 'id'; wanted"),
    ([{**ROWS[1], **removal}], "'remove' is True among 'id', 'title'"),
    ([{**removal, "id": "d99"}], "no document has the id 'd99' in ver"),
    ([ROWS[1], removal], "has the same id as"),
  ):
    with pytest.raises(InputError, match=message):
      update(good + rows)
  assert Corpus.open(corpus.source).fingerprint == corpus.fingerprint
  summary = update([*good, {**removal, "id": "d99"}], skip_bad_lines=True)
  assert sum(summary.new.skipped.values()) == 1
  assert (summary.added, summary.removed) == (1, 1)


def test_an_update_of_a_corpus_without_duplicates(build, update):
  twice = "Ada was in Velt."
  rows = [
    {"id": "a", "title": "", "text": twice},
    {"id": "b", "title": "", "text": f"{twice} The river was by Velt Stone."},
    {"id": "c", "title": "", "text": twice},
  ]
  corpus = build(rows, block_length=10, remove_duplicates=True, shard_bytes=1)
  assert [corpus.block(row).id for row in range(2)] == ["a:0", "b:1"]
  assert [corpus.document_rows(n).tolist() for n in "abc"] == [[0], [1], []]
  skipped = corpus.summary["skipped"]
  assert skipped == {"blocks that equal an earlier one": 2}
  # One that lost its first block is still known, and still the same.
  assert update([rows[1]]).unchanged == 1
  assert update([{"id": "b", "remove": True}]).blocks_removed == 1
  assert corpus.newest().num_blocks == 1
  assert manifest.read(corpus.source)["num_documents"] == 1
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
  assert newest.at(1, corpus.fingerprint) is corpus
  assert newest.has_version(1, corpus.fingerprint)
  assert not newest.has_version(2, corpus.fingerprint)
  with pytest.raises(
    CorpusError, match=r"no corpus version 3 .*versions \[1, "
  ):
    newest.at(3, "0" * 64)


@pytest.mark.slow
def test_on_an_object_store_the_faster_update_stands(
  built, object_store, tmp_path, monkeypatch
):
  """There nobody can be kept out, and nothing renamed."""
  source = epath.Path(object_store.path(secrets.token_hex(4))) / "corpus"
  upload_directory(Path(built), source)
  corpus = Corpus.open(source)

  def update(rows):
    lines = write_lines(tmp_path / "changes.jsonl", rows)
    return update_corpus([str(lines)], source)

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
  names = {name[0].partition(":")[0] for name in contents(faster).values()}
  assert names == {"new", *(row["id"] for row in ROWS)}


def test_all_versions_stay_until_their_manifest_is_removed(corpus, update):
  for number in range(4):
    gone = {"id": f"d{number}", "remove": True}
    update([gone, article(f"n{number}", seed=number)])
  assert manifest.earlier_versions(corpus.source) == [1, 2, 3, 4]
  for version in range(1, 6):
    require_consistent(Corpus.open(corpus.source, version=version))
  for version in (1, 2, 3):
    (corpus.source / manifest.manifest_path(version)).unlink()
  with pytest.raises(CorpusError, match=r"has versions \[4, 5\]"):
    Corpus.open(corpus.source, version=3)
  # The next update removes what no version names, and nothing else.
  copy = corpus.source / "mine" / "shard-00000"
  shutil.copytree(corpus.source / copy.name, copy)
  update([])
  assert len([*copy.iterdir()]) > 9
  require_all_named(corpus.source)


def require_all_named(directory: Path) -> None:
  """Every array, list of removed blocks and model of a view is of a version."""
  folders = ("shard-*/*", "removed/*", "views/*")
  paths = [path for folder in folders for path in directory.glob(folder)]
  versions = [*manifest.earlier_versions(directory), None]
  named = {
    file.path
    for version in versions
    for file in files_of(manifest.read(directory, version=version))
  }
  assert {str(path.relative_to(directory)) for path in paths} == named


def test_a_full_disk_says_what_helps_an_update(corpus, update):
  rows = [article("new", seed=1)]
  with (
    full_disk(256),
    pytest.raises(DiskFullError, match=r"is full .*: free some space$"),
  ):
    update(rows)
  assert update(rows).version == 2


def change_and_die(change: str, last: str) -> str:
  """A program that is killed once it has replaced a file of this name."""
  return f"""
import os, signal
from realm_jax.corpus.update import add_views, update_corpus

replace = os.replace

def replace_and_die(source, target):
  replace(source, target)
  if str(target).endswith({last!r}):
    os.kill(os.getpid(), signal.SIGKILL)

os.replace = replace_and_die
{change}
"""


@pytest.mark.slow
def test_a_kill_leaves_the_version_before_or_the_new_one(
  corpus, update, tmp_path, command_server
):
  """After an array, the manifest of the version before, and the new one."""
  rows = [article("new", seed=1), {"id": "d3", "remove": True}]
  lines = str(write_lines(tmp_path / "lines.jsonl", rows))
  before = contents(corpus)
  moments = {"bodies.npy": 1, "00000001.json": 1, "corpus.json": 2}
  copies = [shutil.copytree(corpus.source, tmp_path / at) for at in moments]
  update(rows)
  after = contents(corpus.newest())
  for copy, (at, version) in zip(copies, moments.items(), strict=True):
    program = change_and_die(f"update_corpus([{lines!r}], {str(copy)!r})", at)
    done = command_server.run([sys.executable, "-c", program])
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = Corpus.open(copy)
    left.verify()
    assert left.version == version
    assert contents(left) == (before if version == 1 else after)
    # The next update removes what the killed one left.
    update_corpus([lines] if version == 1 else [], copy)
    require_all_named(copy)
    assert contents(left.newest()) == after
