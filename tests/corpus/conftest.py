"""A vocabulary of letters and a few words, and corpora built with it."""

import shutil
import string
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.store import Block, Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.text.vocabulary import SPECIAL_PIECES
from tests.json_lines import write_lines

WORDS = "the cafe of velt was built in 1987 by ada stone river".split()
CHARACTERS = string.ascii_lowercase + string.digits
PIECES = (
  *(*SPECIAL_PIECES, *WORDS, *". , - ( )".split(), *CHARACTERS),
  *(f"##{character}" for character in CHARACTERS),
)


def article(name: str, *, seed: int, sentences: int = 6) -> dict[str, str]:
  """A document of several blocks of 16 wordpieces."""
  rng = np.random.default_rng(seed)
  text = [
    " ".join(rng.choice(WORDS, rng.integers(3, 9))).capitalize() + "."
    for _ in range(sentences)
  ]
  return {"id": name, "title": f"Velt {name}", "text": " ".join(text)}


def text_of(block: Block, start: int, limit: int) -> str:
  """Body tokens `[start, limit)` of a block as they were written."""
  ranges = block.byte_ranges
  return block.text.encode()[ranges[start, 0] : ranges[limit - 1, 1]].decode()


ROWS = [article(f"d{i}", seed=i, sentences=1 + i % 5) for i in range(12)]


def contents(corpus: Corpus) -> dict[int, tuple]:
  """All that is known of each block, by its id."""
  blocks = {}
  for row, name in enumerate(corpus.block_ids.tolist()):
    block = corpus.block(row)
    blocks[name] = (
      *(block.id, block.title, block.url, block.text),
      *(block.token_ids.tolist(), block.title_length),
      *(block.byte_ranges.tolist(), block.sentences.tolist()),
      block.salient_spans.tolist(),
      [corpus.span_kinds[kind] for kind in block.salient_span_kinds],
      int(corpus.content_hashes[row]),
      int(corpus.lengths[row]),
    )
  return blocks


def files(directory: epath.PathLike) -> dict[str, bytes]:
  """The contents of all files of a folder."""
  paths = (path for path in Path(directory).rglob("*") if path.is_file())
  return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def require_consistent(corpus: Corpus) -> None:
  """One block at a time, and many at once, are the same."""
  corpus.verify()
  rows = np.arange(corpus.num_blocks)
  ids = corpus.block_ids
  assert len(np.unique(ids)) == len(ids) == corpus.num_blocks
  assert corpus.rows_of(ids).tolist() == rows.tolist()
  rng = np.random.default_rng(0)
  rng.shuffle(rows)
  gathered = corpus.gather(rows, corpus.block_length)
  flat, offsets = corpus.body_tokens_flat(rows)
  bodies = corpus.bodies_utf8(rows)
  for i, row in enumerate(rows.tolist()):
    block = corpus.block(row)
    assert np.count_nonzero(gathered[i]) == corpus.lengths[row]
    body = flat[slice(*offsets[i : i + 2])]
    assert body.tolist() == block.body_token_ids.tolist()
    assert bodies[i].decode() == block.text
    expected = block_id(corpus.name, block.document_id, block.ordinal)
    assert ids[row] == expected


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory) -> str:
  path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
  path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
  return str(path)


@pytest.fixture
def build(tmp_path, vocab_file) -> Callable[..., Corpus]:
  """`build(rows, **arguments)` builds a corpus of these rows and opens it.

  `folder` is its directory's name. Its own name is always "corpus".
  """

  def build_and_open(
    rows: Iterable[dict], *, folder: str = "corpus", **arguments
  ) -> Corpus:
    lines = write_lines(tmp_path / f"{folder}.jsonl", rows)
    arguments = {"vocab": vocab_file, "name": "corpus"} | arguments
    build_corpus([str(lines)], tmp_path / folder, **arguments)
    return Corpus.open(tmp_path / folder)

  return build_and_open


@pytest.fixture(scope="session")
def built(tmp_path_factory, vocab_file) -> Path:
  """Twelve documents in shards of about five blocks."""
  folder = tmp_path_factory.mktemp("built")
  build_corpus(
    [str(write_lines(folder / "rows.jsonl", ROWS))],
    folder / "corpus",
    vocab=vocab_file,
    block_length=16,
    shard_bytes=450,
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
