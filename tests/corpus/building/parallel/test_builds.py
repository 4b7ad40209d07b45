"""The corpus is the same whatever built it, and what no part can know."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import zstandard

from realm_jax.corpus import versions
from realm_jax.corpus.building.block_identity import block_id
from realm_jax.corpus.building.corpus import build_corpus
from realm_jax.corpus.building.parallel.in_process import InProcess
from realm_jax.corpus.building.sources import input_file
from realm_jax.corpus.errors import CorpusError, InputError
from realm_jax.corpus.store import NULL_ROW, Corpus
from tests.corpus.updated import article, contents, require_consistent

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
def build_with(inputs, tmp_path, vocab_file, monkeypatch):
  """Builds `inputs` with a runner, in chunks of seven rows."""
  monkeypatch.setattr(input_file, "ROWS_PER_CHUNK", 7)

  def build(directory: str, **arguments) -> Path:
    build_corpus(
      inputs,
      tmp_path / directory,
      **{
        "vocab": vocab_file,
        "name": "corpus",
        "block_length": 24,
        "blocks_per_shard": 20,
        "drop_titles": ["wikipedia"],
        "skip_bad_lines": True,
        **arguments,
      },
    )
    return tmp_path / directory

  return build


def test_a_build_by_hand(build_with, inputs):
  corpus = Corpus.open(build_with("here"))
  require_consistent(corpus)
  assert corpus.summary["skipped"] == {
    "malformed lines": 2,
    "repeated ids": 1,
    "title with 'List of'": 1,
    "no words in the text": 1,
  }
  assert corpus.summary["first_errors"][0].startswith(f"{inputs[0]}:10: an")
  assert (
    f"{inputs[1]}:10 has the same id 'd3'"
    in (corpus.summary["first_errors"][1])
  )
  names = [corpus.document_id(row) for row in range(corpus.num_blocks)]
  assert list(dict.fromkeys(names)) == [*(f"d{i}" for i in range(40)), "copy"]
  # Shards end at 20 blocks, once a document is complete.
  manifest = versions.read(corpus.source)
  sizes = [shard["num_blocks"] for shard in manifest["shards"]]
  assert sum(sizes) == corpus.num_blocks
  assert all(20 <= size < 30 for size in sizes[:-1])


@pytest.mark.slow
def test_any_number_of_workers_and_beam_give_the_same_bytes(build_with):
  pytest.importorskip("apache_beam", reason="Beam is an extra")
  from realm_jax.corpus.building.parallel.beam import BeamRunner

  for settings in ({}, {"remove_duplicates": True}):
    expected = files(build_with("here", overwrite=True, **settings))
    runner = BeamRunner("DirectRunner")
    beam = build_with("beam", runner=runner, overwrite=True, **settings)
    assert files(beam) == expected
  workers = build_with("workers", runner=InProcess(2), **settings)
  assert files(workers) == expected


def test_the_chunks_do_not_show(build_with, monkeypatch):
  expected = files(build_with("here"))
  monkeypatch.setattr(input_file, "ROWS_PER_CHUNK", 1000)
  assert files(build_with("large")) == expected


def test_the_first_bad_line_is_named(build_with, inputs):
  with pytest.raises(InputError, match=r"0\.jsonl:10: an empty line"):
    build_with("out", skip_bad_lines=False)
  inputs.reverse()  # Files are sorted by name.
  with pytest.raises(InputError, match=r"0\.jsonl:10: an empty line"):
    build_with("out", skip_bad_lines=False)
  with pytest.raises(CorpusError, match="--workers=0; give 1"):
    InProcess(0)


def test_a_damaged_compressed_file_is_named(inputs, build_with):
  for path in map(Path, inputs[1:]):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    if path.suffix == ".gz":
      with pytest.raises(InputError, match=f"{path.name} cannot be decompr"):
        build_with("out")
    path.write_bytes(whole)


def test_duplicates_are_counted_and_removed(build_with):
  whole = Corpus.open(build_with("whole"))
  seen = set[tuple[str, str]]()
  first_rows = []
  for row in range(whole.num_blocks):
    block = whole.title(row), whole.body(row)
    if block not in seen:
      first_rows.append(row)
    seen.add(block)
  num_duplicates = whole.num_blocks - len(first_rows)
  assert whole.summary["duplicate_blocks"] == num_duplicates > 5
  less = Corpus.open(build_with("less", remove_duplicates=True))
  require_consistent(less)
  assert less.block_ids.tolist() == whole.block_ids[first_rows].tolist()
  assert less.summary["blocks"] == less.num_blocks == len(first_rows)
  assert less.summary["skipped"]["blocks that equal an earlier one"] == (
    num_duplicates
  )
  expected = contents(whole)
  for name, found in contents(less).items():
    assert found == expected[name]


def test_an_update_of_a_corpus_without_duplicates(build, update):
  twice = "Ada was in Velt."
  rows = [
    {"id": "a", "title": "", "text": twice},
    {"id": "b", "title": "", "text": f"{twice} The river was by Velt Stone."},
    {"id": "c", "title": "", "text": twice},
  ]
  corpus = build(rows, block_length=10, remove_duplicates=True)
  assert [corpus.block_name(row) for row in range(2)] == ["a:0", "b:1"]
  # One that lost its first block is still known, and still the same.
  assert update([rows[1]]).unchanged == 1
  assert update([{"id": "b", "remove": True}]).blocks_removed == 1
  newest = Corpus.open(corpus.source)
  assert newest.num_blocks == 1
  assert versions.read(newest.source)["num_documents"] == 1
  assert newest.rows_of(np.array(block_id("corpus", "b", 1))) == NULL_ROW
  # Nothing is left of c, so that it is new.
  assert update([rows[2]]).added == 1
  require_consistent(Corpus.open(corpus.source))


def test_a_tagger_may_take_many_texts(build):
  calls = []

  class Many:
    def __call__(self, text, title):
      raise AssertionError("one at a time")

    def tag_many(self, texts, titles):
      calls.append((list(texts), list(titles)))
      return [[(0, 3, "person")] for _ in texts]

  rows = [{"title": f"Velt {i}", "text": "Ada was in."} for i in range(3)]
  corpus = build(rows, tagger=Many())
  assert calls == [(["Ada was in."] * 3, ["Velt 0", "Velt 1", "Velt 2"])]
  assert [corpus.salient_spans(row).tolist() for row in range(3)] == (
    [[[0, 1]]] * 3
  )
