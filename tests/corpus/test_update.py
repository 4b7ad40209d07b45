"""An update: what comes, goes and stays, version beside version."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from realm_jax.corpus import version_writer, versions
from realm_jax.corpus.block_builder import block_id
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.errors import CorpusError, InputError
from realm_jax.corpus.known_documents import consists_of
from realm_jax.corpus.staging import stage
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.corpus.version_writer import VersionWriter
from tests.corpus.conftest import write_lines

WORDS = "the cafe of velt was built in 1987 by ada stone river".split()


def article(name: str, *, seed: int, sentences: int = 6) -> dict[str, str]:
  """A document of several blocks of 16 wordpieces."""
  rng = np.random.default_rng(seed)
  text = [
    " ".join(rng.choice(WORDS, rng.integers(3, 9))) + "."
    for _ in range(sentences)
  ]
  text = [sentence[0].upper() + sentence[1:] for sentence in text]
  return {"id": name, "title": f"Velt {name}", "text": " ".join(text)}


ROWS = [article(f"d{i}", seed=i, sentences=1 + i % 5) for i in range(12)]


@pytest.fixture(scope="module")
def built(tmp_path_factory, vocab_file) -> Path:
  """Twelve documents in shards of about five blocks."""
  folder = tmp_path_factory.mktemp("built")
  build_corpus(
    [str(write_lines(folder / "rows.jsonl", ROWS))],
    folder / "corpus",
    vocab=vocab_file,
    block_length=16,
    blocks_per_shard=5,
  )
  return folder / "corpus"


@pytest.fixture
def corpus(built, tmp_path) -> Corpus:
  """A copy of it to change."""
  return Corpus.open(shutil.copytree(built, tmp_path / "corpus"))


@pytest.fixture
def update(tmp_path):
  """`update(rows, **arguments)` updates `corpus`, and gives the summary."""

  def run(rows, **arguments):
    lines = write_lines(tmp_path / "changes.jsonl", rows)
    return update_corpus([str(lines)], tmp_path / "corpus", **arguments)

  return run


def contents(corpus: Corpus) -> dict[int, tuple]:
  """All that is known of each block, by its id."""
  found = {}
  for row, name in enumerate(corpus.block_ids.tolist()):
    parts = (
      *(corpus.block_name(row), corpus.title(row), corpus.url(row)),
      corpus.body(row),
      corpus.token_ids(row).tolist(),
      corpus.title_length(row),
      corpus.body_byte_ranges(row).tolist(),
      corpus.sentences(row).tolist(),
      corpus.salient_spans(row).tolist(),
      int(corpus.lengths[row]),
    )
    found[name] = parts
  return found


def require_consistent(corpus: Corpus) -> None:
  """One block at a time, and many at once, are the same."""
  corpus.verify()
  rows = np.arange(corpus.num_blocks)
  ids = corpus.block_ids
  assert len(np.unique(ids)) == len(ids) == corpus.num_blocks
  assert corpus.rows_of(ids).tolist() == rows.tolist()
  rng = np.random.default_rng(0)
  rng.shuffle(rows)
  gathered = corpus.gather(np.append(rows, NULL_ROW), corpus.block_length)
  flat, offsets = corpus.body_tokens_flat(rows)
  bodies = corpus.bodies_utf8(rows)
  for i, row in enumerate(rows.tolist()):
    tokens = corpus.token_ids(row)
    assert np.count_nonzero(gathered[i]) == corpus.lengths[row]
    assert set(tokens.tolist()) <= set(gathered[i].tolist())
    body = flat[offsets[i] : offsets[i + 1]]
    assert body.tolist() == corpus.body_token_ids(row).tolist()
    assert bodies[i].decode() == corpus.body(row)
    name, ordinal = corpus.block_name(row).split(":")
    assert ids[row] == block_id(name, int(ordinal))
  with pytest.raises(IndexError):
    corpus.token_ids(corpus.num_blocks)


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
  rebuilt = build(changed.values(), name="rebuilt", block_length=16)
  assert contents(updated) == contents(rebuilt)
  manifest = versions.read(updated.source)
  expected = versions.read(rebuilt.source)
  for total in ("num_blocks", "num_documents", "num_tokens", "vocabulary"):
    assert manifest[total] == expected[total]


def test_many_updates_one_after_the_other(corpus, build, update):
  rng = np.random.default_rng(1)
  documents = {row["id"]: row for row in ROWS}
  seen = [contents(corpus)]
  for number in range(6):
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
      documents.values(), name="again", block_length=16, overwrite=True
    )
    assert contents(newest) == contents(rebuilt)
    seen.append(contents(newest))
  # Every version is still what it was.
  for version, expected in enumerate(seen, start=1):
    assert contents(Corpus.open(corpus.source, version=version)) == expected


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
  with pytest.raises(CorpusError, match="was built anew, with another"):
    corpus.at(rebuilt.version, rebuilt.fingerprint)
  with pytest.raises(CorpusError, match="it was pruned, or the corpus"):
    rebuilt.at(1, corpus.fingerprint)


def test_what_did_not_change_makes_no_version(corpus, update):
  files = sorted(Path(corpus.source).rglob("*"))
  spaced = {**ROWS[2], "text": "\n" + ROWS[2]["text"] + "  "}
  summary = update([ROWS[1], spaced])
  assert (summary.unchanged, summary.changes_something) == (2, False)
  assert summary.version == Corpus.open(corpus.source).version == 1
  assert update([]).version == 1
  assert sorted(Path(corpus.source).rglob("*")) == files


@pytest.mark.parametrize(
  "text, bodies, expected",
  [
    ("a b. c", ["a b.", "c"], True),
    ("\u2003a b.\n\n c ", ["a b.", "c"], True),
    ("a  b. c", ["a b.", "c"], False),
    ("a b. c d", ["a b.", "c"], False),
    ("a b.", ["a b.", "c"], False),
    # A character of several wordpieces, cut between two blocks.
    ("x½y", ["x½", "½y"], True),
    ("", [], True),
  ],
)
def test_a_text_is_compared_without_the_space_between_blocks(
  text, bodies, expected
):
  assert consists_of(text, bodies) is expected


def test_a_character_that_two_blocks_show_is_no_change(build, update):
  # Read as "a.m.", in a body of three wordpieces beside two of the title.
  rows = [{"id": "d", "title": "the café of", "text": "Ada ㏂ in Velt."}]
  corpus = build(rows, block_length=8)
  shown = [corpus.body(row) for row in range(corpus.num_blocks)]
  assert sum("㏂" in body for body in shown) == 2
  assert update(rows).unchanged == 1


def test_a_title_to_drop_takes_the_document_away(corpus, update):
  summary = update([{**ROWS[3], "title": "List of Velt"}])
  assert summary.removed == 1
  newest = Corpus.open(corpus.source)
  assert newest.rows_of(np.array([block_id("d3", 0)])) == NULL_ROW


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


def test_no_corpus_to_update(tmp_path, update):
  with pytest.raises(CorpusError, match="no corpus in"):
    update([ROWS[0]])
  assert not (tmp_path / "corpus").exists()


def test_the_last_block_stays(corpus, update):
  with pytest.raises(CorpusError, match="no block left"):
    update([{"id": row["id"], "remove": True} for row in ROWS])
  assert contents(Corpus.open(corpus.source)) == contents(corpus)


def test_a_second_update_at_once_is_refused(corpus, update):
  with (
    VersionWriter(corpus.source, blocks_per_shard=5),
    pytest.raises(CorpusError, match="another process is building"),
  ):
    update([article("new", seed=1)])
  assert update([article("new", seed=1)]).version == 2


def test_on_an_object_store_the_faster_update_stands(
  corpus, update, tmp_path, monkeypatch
):
  """There nobody can be kept out, and nothing renamed."""
  monkeypatch.setattr(version_writer, "_is_remote", lambda directory: True)
  slower = VersionWriter(corpus.source, blocks_per_shard=5)
  with slower:
    slower.known.take(slower.known.find("d1"))
    assert update([article("new", seed=1)]).version == 2
    with pytest.raises(CorpusError, match="by another process meanwhile"):
      slower.finish(summary={})
  faster = corpus.newest()
  require_consistent(faster)
  assert faster.num_blocks == corpus.num_blocks + len(
    [name for name in contents(faster).values() if name[0].startswith("new:")]
  )
  assert update([{"id": "d1", "remove": True}], keep_versions=1).version == 3
  require_consistent(corpus.newest())
  assert not list(tmp_path.glob(".corpus*"))


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
  named = set(versions.files_of(versions.read(corpus.source)))
  for path in (*corpus.source.glob("shard-*/*"), *corpus.source.glob("rem*/*")):
    assert str(path.relative_to(corpus.source)) in named


def test_a_version_is_staged_and_shares_its_files(corpus, update, tmp_path):
  update([article("new", seed=1), {"id": "d3", "remove": True}])
  cache = tmp_path / "cache"
  staged = {}
  for version in (1, 2):
    manifest = versions.read(corpus.source, version=version)
    staged[version] = Corpus.open(stage(corpus.source, manifest, cache))
    staged[version].verify()
  assert contents(staged[1]) == contents(corpus)
  require_consistent(staged[2])
  path = "shard-00000/token_ids.npy"
  one, two = (staged[v].directory / path for v in (1, 2))
  assert Path(one).samefile(Path(two))


_UPDATE_AND_DIE = """
import os, signal, sys
from realm_jax.corpus import version_writer
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

class Os:
  def __getattr__(self, name):
    value = getattr(os, name)
    return counted(value) if name in ("replace", "fsync") else value

version_writer.os = Os()
version_writer.Path.replace = counted(version_writer.Path.replace)
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
    assert after.rows_of(np.array([block_id("d3", 0)])) == NULL_ROW
    # Nothing that no version names is left by the next update.
    update_corpus([nothing], copy)
    named = {name.partition("/")[0] for name in after._files}
    assert {p.name for p in copy.glob("shard-*")} <= named
    assert not (tmp_path / f".{copy.name}.building").exists()
  total, *codes = [int(code) for code in done.stdout.split()]
  assert total > len(copies)
  assert codes == [-signal.SIGKILL] * 7
  assert seen[1:] == sorted(seen[1:])
  assert set(seen[1:]) == {1, 2}


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
