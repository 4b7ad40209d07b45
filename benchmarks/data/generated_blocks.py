"""Corpora of any size, whose blocks are sentences in random order."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data.hand_made import HandMade, write_corpus
from realm_jax.corpus.block_builder import content_hash
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.shard import NUM_SPECIAL_TOKENS
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
  firsts = range(0, num_blocks, _BLOCKS_PER_DOCUMENT)
  documents = (
    HandMade(
      f"d{first}",
      "",
      [
        _block(sentences, rng)
        for _ in range(min(_BLOCKS_PER_DOCUMENT, num_blocks - first))
      ],
    )
    for first in firsts
  )
  write_corpus(
    target,
    documents,
    pieces=source.vocabulary.pieces,
    block_length=BLOCK_LENGTH,
  )


def _sentences(corpus: Corpus) -> Iterator[_Sentence]:
  for row in range(corpus.num_blocks):
    block = corpus.block(row)
    body = block.body.encode()
    ids, ranges = block.body_token_ids, block.byte_ranges
    for start, limit in block.sentences.tolist():
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
  body = b"".join(s.text for s in chosen)
  return {
    "title_length": 0,
    "content_hash": content_hash("", body),
    "token_ids": np.concatenate([s.token_ids for s in chosen]),
    "byte_ranges": np.concatenate(
      [s.byte_ranges + start for s, start in zip(chosen, starts, strict=False)]
    ),
    "sentences": np.array(list(itertools.pairwise(bounds)), np.int32),
    "salient_spans": np.zeros((0, 2), np.int32),
    "salient_span_kinds": [],
    "body": body,
  }
