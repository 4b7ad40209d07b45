"""An update: what comes, goes and stays."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from realm_jax.corpus import versions
from realm_jax.corpus.building.block_identity import block_id
from realm_jax.corpus.errors import CorpusError, InputError
from realm_jax.corpus.store import NULL_ROW, Corpus
from tests.corpus.conftest import write_lines
from tests.corpus.updated import ROWS, article, contents, require_consistent


def test_an_update_is_what_a_build_of_the_changed_text_is(
  corpus, build, update
):
  changed = {row["id"]: row for row in ROWS}
  changed["d3"] = article("d3", seed=103)
  changed["d4"] = {**ROWS[4], "url": "u:4"}
  changed["new"] = article("new", seed=200)
  del changed["d0"], changed["d7"], changed["d8"]
  gone = [{"id": name, "remove": True} for name in ("d0", "d7", "d8")]
  given = [changed[name] for name in ("d3", "d4", "d5", "new")]
  summary = update(given + gone)
  assert (summary.added, summary.replaced) == (1, 2)
  assert (summary.removed, summary.unchanged) == (3, 1)
  updated = Corpus.open(corpus.source)
  assert updated.version == summary.version == 2
  assert updated.summary == json.loads(json.dumps(summary.to_json()))
  require_consistent(updated)
  rebuilt = build(changed.values(), folder="rebuilt", block_length=16)
  assert contents(updated) == contents(rebuilt)
  manifest = versions.read(updated.source)
  expected = versions.read(rebuilt.source)
  for total in ("num_blocks", "num_documents", "num_tokens", "vocabulary"):
    assert manifest[total] == expected[total]


def test_many_updates_one_after_the_other(corpus, build, update):
  rng = np.random.default_rng(1)
  documents = {row["id"]: row for row in ROWS}
  seen = [contents(corpus)]
  for number in range(4):
    names = list(documents)
    gone = rng.choice(names, 3, replace=False).tolist()
    given = [
      article(f"n{number}", seed=number, sentences=4),
      article(gone[0], seed=50 + number),  # Replaced.
      # Back again, if it is gone by now, as it was at first.
      ROWS[int(rng.choice([n for n in range(12) if f"d{n}" not in gone]))],
    ]
    update([*given, *({"id": name, "remove": True} for name in gone[1:])])
    documents.update({row["id"]: row for row in given})
    for name in gone[1:]:
      del documents[name]
    newest = Corpus.open(corpus.source)
    require_consistent(newest)
    rebuilt = build(
      documents.values(), folder="again", block_length=16, overwrite=True
    )
    assert contents(newest) == contents(rebuilt)
    seen.append(contents(newest))
  # Every version is still what it was.
  for version, expected in enumerate(seen, start=1):
    assert contents(Corpus.open(corpus.source, version=version)) == expected


def test_what_did_not_change_makes_no_version(corpus, update):
  files = sorted(Path(corpus.source).rglob("*"))
  # The space around blocks, and between them: see `ExistingDocuments.is_same`.
  text = ROWS[2]["text"].replace(". ", ".\u2003\n ", 2)
  spaced = {**ROWS[2], "text": f"\n{text}  "}
  summary = update([ROWS[1], spaced])
  assert (summary.unchanged, summary.changes_something) == (2, False)
  assert summary.version == Corpus.open(corpus.source).version == 1
  assert update([]).version == 1
  assert sorted(Path(corpus.source).rglob("*")) == files


def test_a_character_that_two_blocks_show_is_no_change(build, update):
  # Read as "a.m.", in a body of three wordpieces beside two of the title.
  rows = [{"id": "d", "title": "the café of", "text": "Ada ㏂ in Velt."}]
  corpus = build(rows, block_length=8)
  shown = [corpus.body(row) for row in range(corpus.num_blocks)]
  assert sum("㏂" in body for body in shown) == 2
  assert update(rows).unchanged == 1
  # Both blocks would show these two, too.
  for text in ("Ada ㏂㏂ in Velt.", "Ada ㏂ ㏂ in Velt."):
    assert update([{**rows[0], "text": text}]).replaced == 1
    assert update(rows).replaced == 1


@pytest.mark.parametrize(
  "text, changed",
  [
    # A digit of both blocks, which no text has once; …
    ("ada 1 2 2 3", "ada 1 2 3"),
    # … numbers that were two, and a word that was one.
    ("ada 1 2 3 4", "ada 1 23 4"),
    ("ada in qxvelt", "ada in qxv elt"),
  ],
)
def test_what_touches_where_blocks_end_is_a_change(
  build, update, text, changed
):
  # Three wordpieces in a body.
  row = {"id": "d", "title": "ada stone", "text": text}
  assert build([row], block_length=8).num_blocks > 1
  assert update([row]).unchanged == 1
  assert update([{**row, "text": changed}]).replaced == 1


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
  assert newest.salient_span_kinds(row).tolist() == [2, 1]
  assert newest.salient_span_kinds(0).tolist() == (
    corpus.salient_span_kinds(0).tolist()
  )


@pytest.mark.parametrize(
  "rows, message",
  [
    ([{"title": "Velt", "text": "Ada."}], r"changes.jsonl:3: no 'id'; wanted"),
    ([{"id": "d1", "text": "Ada."}], "no 'title' among"),
    ([{"id": "d1", "remove": "yes"}], "'remove' is 'yes' among"),
    ([{**ROWS[1], "remove": True}], "'remove' is True among 'id', 'title'"),
    ([{"id": "d99", "remove": True}], "no document has the id 'd99' in ver"),
    ([ROWS[1], {"id": "d1", "remove": True}], "has the same id 'd1' as"),
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


def test_settings_that_are_not_the_corpuss_are_refused(
  corpus, update, tmp_path, vocab_file
):
  rows = [article("new", seed=1)]
  other = tmp_path / "other.txt"
  other.write_text(Path(vocab_file).read_text() + "more\n")
  for settings, message in (
    ({"block_length": 24}, "--block_length=24, and .* has 16"),
    ({"vocab": str(other)}, "is not the vocabulary of"),
    ({"vocab": "train:100"}, "is not the vocabulary of"),
    ({"blocks_per_shard": 0}, "blocks_per_shard=0"),
    ({"keep_versions": 0}, "keep_versions=0"),
  ):
    with pytest.raises(CorpusError, match=message):
      update(rows, **settings)
  assert update(rows, vocab=vocab_file, block_length=16).version == 2


@pytest.mark.slow
def test_the_command(corpus, tmp_path, command_environment):
  write_lines(tmp_path / "changes.jsonl", [{"id": "d3", "remove": True}])

  def run(*flags):
    return subprocess.run(
      [
        *(sys.executable, "-m", "realm_jax.build_corpus", "--update"),
        f"--input={tmp_path}/changes.jsonl",
        f"--output_dir={tmp_path}/corpus",
        *flags,
      ],
      capture_output=True,
      text=True,
      env=command_environment,
      timeout=120,
    )

  refused = run("--overwrite")
  assert refused.returncode == 2
  assert "--overwrite is for a whole build" in refused.stderr
  done = run("--keep_versions=3")
  assert done.returncode == 0, done.stderr
  assert "documents removed" in done.stdout
  assert f"corpus: {tmp_path}/corpus, version 2" in done.stdout
  assert Corpus.open(corpus.source).version == 2
