"""A shard is a piece of the input, whoever builds it; and builds that fail."""

import gzip
import json
import sys
from pathlib import Path

import pytest
import zstandard
from etils import epath

from benchmarks.runs.jobs import wait_until
from realm_jax.corpus import CorpusError, InputError, block_builder, writing
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.manifest import earlier_versions, read
from realm_jax.corpus.store import Corpus
from realm_jax.storage.atomic import TargetError
from realm_jax.storage.local_disk import DiskFullError
from tests.corpus.conftest import write_lines
from tests.corpus.updated import article, contents, require_consistent, text_of

# Some with the contents of others, some with dropped titles, one wordless.
ROWS = [
  *(
    {**article(f"d{i}", seed=i % 30, sentences=1 + i % 9), "title": "Velt"}
    for i in range(40)
  ),
  {"id": "list", "title": "List of Velt", "text": "Ada."},
  {"id": "empty", "title": "Velt", "text": " \n"},
  {**article("copy", seed=2), "title": "Velt"},
]
BAD = ["", '{"id": "d3", "title": "Again", "text": "Ada."}', "[]"]


@pytest.fixture
def inputs(tmp_path) -> list[str]:
  """Three files, the last two compressed, with bad lines in each."""
  paths = []
  for number, rows in enumerate((ROWS[:15], ROWS[15:30], ROWS[30:])):
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    lines.insert(9, BAD[number])
    text = ("\n".join(lines) + "\n").encode()
    path = tmp_path / f"{number}.jsonl"
    if number == 1:
      path, text = path.with_suffix(".jsonl.gz"), gzip.compress(text)
    if number == 2:
      # Two frames, as `cat a.zst b.zst` gives.
      half = text.index(b"\n") + 1
      parts = (text[:half], text[half:])
      path = path.with_suffix(".jsonl.zst")
      text = b"".join(map(zstandard.compress, parts))
    path.write_bytes(text)
    paths.append(str(path))
  return paths


def files(directory: Path) -> dict[str, bytes]:
  return {
    str(path.relative_to(directory)): path.read_bytes()
    for path in directory.rglob("*")
    if path.is_file()
  }


@pytest.fixture
def build_with(inputs, tmp_path, vocab_file):
  """Builds `inputs`, by default in shards of 700 bytes."""

  def run(directory: str, **arguments) -> Path:
    summary = build_corpus(
      inputs,
      tmp_path / directory,
      **{
        "vocab": vocab_file,
        "name": "corpus",
        "block_length": 24,
        "shard_bytes": 700,
        "drop_titles": ["wikipedia"],
        "skip_bad_lines": True,
        **arguments,
      },
    )
    # Every count is shown.
    assert all(str(n) in summary.table() for n in summary.skipped.values())
    return tmp_path / directory

  return run


def test_a_build_by_hand(build_with, inputs):
  corpus = Corpus.open(build_with("here"))
  require_consistent(corpus)
  assert corpus.summary["skipped"] == {
    "malformed lines": 2,
    "repeated ids": 1,
    "title with 'List of'": 1,
    "no words in the text": 1,
  }
  errors = corpus.summary["first_errors"]
  assert errors[0].startswith(f"{inputs[0]}:10: an empty line")
  assert errors[1].startswith(f"{inputs[2]}:10: list")
  assert f"{inputs[1]}:10 has the same id as {inputs[0]}:4;" in errors[2]
  names = [corpus.block(row).document_id for row in range(corpus.num_blocks)]
  assert list(dict.fromkeys(names)) == [*(f"d{i}" for i in range(40)), "copy"]
  shards = read(corpus.source)["shards"]
  assert len(shards) > 5
  assert sum(shard["num_blocks"] for shard in shards) == corpus.num_blocks


@pytest.mark.slow
def test_any_number_of_workers_and_beam_give_the_same_bytes(build_with):
  pytest.importorskip("apache_beam", reason="Beam is an extra")
  # Workers are given the phrases that recur in the whole corpus.
  settings = {"remove_duplicates": True, "tagger": "recurring"}
  expected = files(build_with("here", **settings))
  assert files(build_with("two", workers=2, **settings)) == expected
  beam = build_with("beam", runner="DirectRunner", **settings)
  assert files(beam) == expected


@pytest.mark.slow
def test_beam_builds_where_other_machines_see_it(
  build_with, object_store, tmp_path, monkeypatch
):
  pytest.importorskip("apache_beam", reason="Beam is an extra")
  monkeypatch.setenv("REALM_JAX_CACHE_DIR", str(tmp_path / "cache"))
  # The emulator of a store drops a carriage return that ends a file.
  settings = {"remove_duplicates": True, "name": "beam"}
  expected = Corpus.open(build_with("here", **settings))
  target = epath.Path(object_store.path(f"beam/{tmp_path.name}"))
  build_with(target, **settings, runner="DirectRunner")
  found = Corpus.open(target)
  assert found.fingerprint == expected.fingerprint
  require_consistent(found)
  assert {p.name for p in target.iterdir()} == {
    p.name for p in expected.source.iterdir()
  }


@pytest.mark.slow
@pytest.mark.parametrize("shard_bytes", [1, None])
def test_shards_and_chunks_do_not_show(build_with, monkeypatch, shard_bytes):
  def first_word(text, title):
    """Finds one span, of a kind that few documents have."""
    return [(0, len(word), word) for word in text.split(maxsplit=1)[:1]]

  expected = Corpus.open(build_with("here", tagger=first_word))
  assert len(expected.span_kinds) > 5
  monkeypatch.setattr(block_builder, "DOCUMENTS_PER_CHUNK", 3)
  other = Corpus.open(
    build_with("other", shard_bytes=shard_bytes, tagger=first_word)
  )
  assert other.block_ids.tolist() == expected.block_ids.tolist()
  assert contents(other) == contents(expected)
  assert other.summary == expected.summary


def test_the_first_bad_line_is_named_and_nothing_is_left(
  build_with, inputs, tmp_path
):
  before = sorted(tmp_path.iterdir())
  inputs.reverse()  # Files are sorted by name.
  with pytest.raises(InputError, match=r"0\.jsonl:10: an empty line"):
    build_with("out", skip_bad_lines=False)
  for name in ("workers", "shard_bytes"):
    with pytest.raises(CorpusError, match=f"{name}=0; give 1"):
      build_with("out", **{name: 0})
  assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("number", [1, 2], ids=["gz", "zst"])
def test_a_compressed_file_that_is_cut_is_named(
  inputs, build_with, tmp_path, number
):
  path = Path(inputs[number])
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(InputError, match=f"{path.name} cannot be decompr"):
    build_with("out")
  assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_duplicates_are_counted_and_removed(build_with):
  whole = Corpus.open(build_with("whole"))
  first_rows: dict[int, int] = {}
  for row, name in enumerate(whole.content_hashes.tolist()):
    first_rows.setdefault(name, row)
  num_duplicates = whole.num_blocks - len(first_rows)
  assert whole.summary["duplicate_blocks"] == num_duplicates > 5
  less = Corpus.open(build_with("less", remove_duplicates=True))
  require_consistent(less)
  kept = [*first_rows.values()]
  assert less.block_ids.tolist() == whole.block_ids[kept].tolist()
  assert less.summary["blocks"] == less.num_blocks == len(kept)
  assert less.summary["skipped"]["blocks that equal an earlier one"] == (
    num_duplicates
  )
  assert contents(less).items() <= contents(whole).items()


# --- Directories that appear whole, or not at all -----------------------


@pytest.fixture
def build_some(tmp_path, vocab_file):
  """`build_some(3)` builds a corpus of three blocks, each in its shard."""

  def run(count: int, **arguments) -> Corpus:
    rows = [{"title": f"{i}", "text": "Ada."} for i in range(count)]
    lines = write_lines(tmp_path / "rows.jsonl", rows)
    arguments = {"vocab": vocab_file, "shard_bytes": 1} | arguments
    build_corpus([str(lines)], tmp_path / "corpus", **arguments)
    return Corpus.open(tmp_path / "corpus")

  return run


def names(directory: Path) -> list[str]:
  found = {path.name for path in directory.iterdir()}
  return sorted(found - {"rows.jsonl"})


def test_a_full_disk_is_explained(build_some, tmp_path, monkeypatch):
  """As a shard is written to a disk that takes no more."""
  saved = []

  def save(path, array):
    saved.append(path)
    with open("/dev/full" if len(saved) > 30 else path, "wb") as file:
      np_save(file, array)

  np_save = writing.np.save
  monkeypatch.setattr(writing.np, "save", save)
  with pytest.raises(DiskFullError, match=r"is full .* free some space"):
    build_some(5)
  assert names(tmp_path) == []


_BUILD_AND_HANG = """
import sys, time
from realm_jax.corpus import build

def hang(*arguments, **keywords):
  print("written", flush=True)
  time.sleep(600)

build.finish = hang
build.build_corpus([sys.argv[1]], sys.argv[2], vocab=sys.argv[3], shard_bytes=1)
"""


@pytest.mark.slow
def test_a_killed_build_leaves_no_half_corpus(
  build_some, tmp_path, vocab_file, command_server
):
  directory = tmp_path / "corpus"
  rows = [{"title": f"{i}", "text": "Ada."} for i in range(6)]
  lines = write_lines(tmp_path / "rows.jsonl", rows)
  arguments = [_BUILD_AND_HANG, str(lines), str(directory), vocab_file]
  log = tmp_path / "log"
  with log.open("w") as file:
    process = command_server.start(
      [sys.executable, "-c", *arguments], stdout=file
    )
  try:
    wait_until(lambda: "written\n" in log.read_text(), what="write")
    # Meanwhile nobody else builds the same corpus, and nobody reads it.
    with pytest.raises(TargetError, match="another process is building"):
      build_some(3)
    with pytest.raises(CorpusError, match="no corpus in"):
      Corpus.open(directory)
  finally:
    process.kill()
    process.wait()
  log.unlink()
  assert names(tmp_path) == [".corpus.building"]
  assert build_some(3).num_blocks == 3
  assert names(tmp_path) == ["corpus"]


def test_on_an_object_store_earlier_versions_go_with_their_corpus(
  build_some, monkeypatch
):
  target = build_some(9).source
  for folder in ("versions", "removed"):
    (target / folder).mkdir()
    (target / folder / "00000001.json").write_text("of another corpus")
  monkeypatch.setattr(writing, "is_remote", lambda path: True)
  build_some(3, overwrite=True)
  assert earlier_versions(target) == []
  assert not (target / "removed").exists()
  Corpus.open(target).verify()


def test_recurring_phrases_are_those_of_the_whole_corpus(
  build_with, inputs, tmp_path
):
  # Each document, and so each shard, has the name once.
  texts = [
    "诗人沈青禾生于江边的小城。",
    "许多读者喜欢沈青禾写的故事。",
    "后来沈青禾搬到山里居住。",
  ]
  inputs[:] = [str(tmp_path / "zh.jsonl")]
  write_lines(Path(inputs[0]), [{"title": "", "text": t} for t in texts])
  settings = {"language": "zh", "vocab": "train:300", "shard_bytes": 1}
  corpus = Corpus.open(build_with("one", **settings))
  assert corpus.summary["tagger"] == "recurring"
  assert len(corpus.shards) == corpus.num_blocks == 3
  for block in map(corpus.block, range(3)):
    found = [text_of(block, *span) for span in block.salient_spans.tolist()]
    assert "沈青禾" in found
