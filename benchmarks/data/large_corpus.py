"""A corpus of any number of blocks, which repeats those of a small one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.data import demo_corpus
from benchmarks.data.hand_made import HandMade, write_corpus
from realm_jax.corpus.store import Corpus

# A document: its title, and the arrays of its blocks.
_Document = tuple[str, list[dict[str, Any]]]


def make_corpus(directory: Path, num_blocks: int, *, scale: float) -> Corpus:
  """Repeats the demo's world, each time with new document ids.

  Args:
    directory: Folder that caches the corpus.
    num_blocks: Number of blocks N.
    scale: Size of the world; 1 is the demo's.
  """
  made = directory / f"corpus-{num_blocks}"
  if not made.exists():
    small = directory / f"corpus-of-{scale}"
    if not (small / "corpus").exists():
      demo_corpus.make_corpus(small, scale=scale)
    _write(made, Corpus.open(small / "corpus"), num_blocks)
  return Corpus.open(made)


def _write(target: Path, source: Corpus, num_blocks: int) -> None:
  documents = list(_documents(source))

  def repeated() -> Iterator[HandMade]:
    left, number = num_blocks, 0
    while left:
      title, blocks = documents[number % len(documents)]
      yield HandMade(f"d{number}", title, blocks[:left])
      left, number = left - len(blocks[:left]), number + 1

  write_corpus(
    target,
    repeated(),
    pieces=source.vocabulary.pieces,
    block_length=source.block_length,
  )


def _documents(corpus: Corpus) -> Iterator[_Document]:
  blocks: list[dict[str, Any]] = []
  for row in range(corpus.num_blocks):
    block = corpus.block(row)
    blocks.append(
      {
        "title_length": block.title_length,
        "token_ids": block.token_ids,
        "byte_ranges": block.byte_ranges,
        "sentences": block.sentences,
        "content_hash": int(corpus.content_hashes[row]),
        "salient_spans": block.salient_spans,
        "salient_span_kinds": [
          corpus.span_kinds[kind] for kind in block.salient_span_kinds
        ],
        "body": block.body.encode(),
      }
    )
    last = row + 1 == corpus.num_blocks
    if last or corpus.block(row + 1).ordinal == 0:
      yield block.title, blocks
      blocks = []
