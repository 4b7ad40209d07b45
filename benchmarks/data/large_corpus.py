"""A corpus of any number of blocks, which repeats those of a small one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.data import demo_corpus
from realm_jax.corpus.building.block_identity import block_id
from realm_jax.corpus.building.directory_writer import CorpusDirectoryWriter
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
  with CorpusDirectoryWriter.open(
    target, pieces=source.vocabulary.pieces, blocks_per_shard=200_000
  ) as writer:
    left, number = num_blocks, 0
    while left:
      title, blocks = documents[number % len(documents)]
      blocks = blocks[:left]
      name = f"d{number}"
      shard = writer.shard
      shard.add_document(
        document_id=name, title=title, url="", num_blocks=len(blocks)
      )
      for ordinal, arrays in enumerate(blocks):
        shard.add_block(block_id=block_id(writer.name, name, ordinal), **arrays)
      left, number = left - len(blocks), number + 1
    writer.finish(version=1, block_length=source.block_length, summary={})


def _documents(corpus: Corpus) -> Iterator[_Document]:
  blocks: list[dict[str, Any]] = []
  for row in range(corpus.num_blocks):
    blocks.append(
      {
        "title_length": corpus.title_length(row),
        "token_ids": corpus.token_ids(row),
        "byte_ranges": corpus.body_byte_ranges(row),
        "sentences": corpus.sentences(row),
        "content_hash": int(corpus.content_hashes[row]),
        "salient_spans": corpus.salient_spans(row),
        "salient_span_kinds": [
          corpus.span_kinds[kind] for kind in corpus.salient_span_kinds(row)
        ],
        "body": corpus.body(row).encode(),
      }
    )
    last = row + 1 == corpus.num_blocks
    if last or corpus.ordinal(row + 1) == 0:
      yield corpus.title(row), blocks
      blocks = []
