"""Corpora of any size, whose blocks are sentences in random order."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm_jax.corpus.building.block_identity import block_id, content_hash
from realm_jax.corpus.building.corpus import build_corpus
from realm_jax.corpus.building.directory_writer import CorpusDirectoryWriter
from realm_jax.corpus.shards.format import NUM_SPECIAL_TOKENS
from realm_jax.corpus.store import Corpus

BLOCK_LENGTH = 288
_BLOCKS_PER_DOCUMENT = 20


class _Sentence(NamedTuple):
  """A sentence with the white space after it; byte ranges begin at its own."""

  token_ids: np.ndarray
  byte_ranges: np.ndarray
  text: bytes


def make_corpus(
  directory: Path,
  num_blocks: int,
  *,
  texts: Sequence[tuple[str, str]],
  vocab: str,
) -> Corpus:
  """Makes blocks of random sentences of some titled texts.

  Args:
    directory: Folder that caches the corpus.
    num_blocks: Number of blocks.
    texts: Titles and texts.
    vocab: Vocabulary, as `build_corpus` takes it.
  """
  made = directory / f"corpus-{num_blocks}"
  if not made.exists():
    _write(made, source_corpus(directory, texts, vocab), num_blocks)
  return Corpus.open(made)


def source_corpus(
  directory: Path, texts: Sequence[tuple[str, str]], vocab: str
) -> Corpus:
  """Makes a corpus of the texts themselves."""
  made = directory / "source"
  if not made.exists():
    directory.mkdir(parents=True, exist_ok=True)
    lines = [
      json.dumps({"title": title, "text": text}) for title, text in texts
    ]
    (directory / "source.jsonl").write_text("\n".join(lines))
    build_corpus(
      [str(directory / "source.jsonl")],
      made,
      vocab=vocab,
      block_length=BLOCK_LENGTH,
    )
  return Corpus.open(made)


def _write(target: Path, source: Corpus, num_blocks: int) -> None:
  sentences = list(_sentences(source))
  rng = np.random.default_rng(0)
  with CorpusDirectoryWriter.open(
    target, pieces=source.vocabulary.pieces, blocks_per_shard=100_000
  ) as writer:
    for first in range(0, num_blocks, _BLOCKS_PER_DOCUMENT):
      count = min(_BLOCKS_PER_DOCUMENT, num_blocks - first)
      shard, name = writer.shard, f"d{first}"
      shard.add_document(document_id=name, title="", url="", num_blocks=count)
      for ordinal in range(count):
        arrays = _block(sentences, rng)
        shard.add_block(
          block_id=block_id(writer.name, name, ordinal),
          content_hash=content_hash("", arrays["body"]),
          salient_span_kinds=[],
          **arrays,
        )
    writer.finish(version=1, block_length=BLOCK_LENGTH, summary={})


def _sentences(corpus: Corpus) -> Iterator[_Sentence]:
  for row in range(corpus.num_blocks):
    body = corpus.body(row).encode()
    ids, ranges = corpus.body_token_ids(row), corpus.body_byte_ranges(row)
    for start, limit in corpus.sentences(row).tolist():
      first, last = int(ranges[start, 0]), int(ranges[limit - 1, 1])
      yield _Sentence(
        ids[start:limit], ranges[start:limit] - first, body[first:last] + b" "
      )


def _block(
  sentences: Sequence[_Sentence], rng: np.random.Generator
) -> dict[str, Any]:
  """Returns the arrays of a block, which is as full as sentences make it."""
  chosen: list[_Sentence] = []
  left = BLOCK_LENGTH - NUM_SPECIAL_TOKENS
  for number in rng.integers(len(sentences), size=100).tolist():
    if (length := len(sentences[number].token_ids)) > left:
      break
    chosen.append(sentences[number])
    left -= length
  chosen = chosen or [min(sentences[:100], key=lambda s: len(s.token_ids))]
  lengths = [len(s.token_ids) for s in chosen]
  bounds = itertools.accumulate(lengths, initial=0)
  starts = itertools.accumulate((len(s.text) for s in chosen), initial=0)
  return {
    "title_length": 0,
    "token_ids": np.concatenate([s.token_ids for s in chosen]),
    "byte_ranges": np.concatenate(
      [s.byte_ranges + start for s, start in zip(chosen, starts, strict=False)]
    ),
    "sentences": np.array(list(itertools.pairwise(bounds)), np.int32),
    "salient_spans": np.zeros((0, 2), np.int32),
    "body": b"".join(s.text for s in chosen),
  }
