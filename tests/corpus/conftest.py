"""A vocabulary of letters and a few words, and corpora built with it."""

import json
import shutil
import string
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.update import update_corpus
from realm_jax.text.wordpieces import SPECIAL_PIECES
from tests.corpus import updated

WORDS = (
  "the café of velt was built in 1987 by ada stone river . , - ( )"
).replace("é", "e")
PIECES = (
  *SPECIAL_PIECES,
  *WORDS.split(),
  *(letter for letter in string.ascii_lowercase + string.digits),
  *(f"##{letter}" for letter in string.ascii_lowercase + string.digits),
)


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory) -> str:
  path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
  path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
  return str(path)


def write_lines(path: Path, rows: Iterable[dict]) -> Path:
  """Writes JSON Lines."""
  lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
  path.write_text("".join(lines), encoding="utf-8")
  return path


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
    [str(write_lines(folder / "rows.jsonl", updated.ROWS))],
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
