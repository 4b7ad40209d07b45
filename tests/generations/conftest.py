"""A small corpus, and generations of it, for the tests of this folder."""

from pathlib import Path

import numpy as np
import pytest

from realm_jax.corpus.directory_writer import CorpusDirectoryWriter
from realm_jax.corpus.shard import Blocks, ragged, write_shards
from realm_jax.corpus.store import Corpus
from realm_jax.generations.store import (
  embeddings,
  layout,
  publisher,
  query_tower,
)
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.manifest import Manifest
from realm_jax.generations.store.publisher import publish
from realm_jax.generations.store.retention import to_prune

DIM = 8
PIECES = (
  *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
  *(f"w{i}" for i in range(59)),
)


def make_corpus(directory: Path, *, num_blocks: int, seed: int = 0) -> Corpus:
  """Blocks of 4 to 40 random words in sentences of 4, one a document."""
  rng = np.random.default_rng(seed)
  words = [
    rng.integers(5, len(PIECES), rng.integers(4, 41)) for _ in range(num_blocks)
  ]
  rows = range(num_blocks)
  shards = [_blocks(rows[i : i + 100], words) for i in rows[::100]]
  with CorpusDirectoryWriter.open(directory, pieces=PIECES) as writer:
    written = write_shards(
      writer.staging, shards, vocab_size=len(PIECES), shard_bytes=1
    )
    writer.finish(version=1, block_length=64, summary={}, shards=written)
  return Corpus.open(directory)


def _blocks(rows: range, words: list[np.ndarray]) -> Blocks:
  lengths = [len(words[row]) for row in rows]
  starts = [np.arange(0, length, 4) for length in lengths]
  sentences = [
    np.stack([start, np.minimum(start + 4, length)], axis=1)
    for start, length in zip(starts, lengths, strict=True)
  ]
  return Blocks(
    {
      "block_ids": np.array(rows),
      "content_hashes": -np.array(rows),
      "title_lengths": np.full(len(rows), 2),
      "salient_span_kinds": np.zeros(0, int),
      "document_starts": np.arange(len(rows) + 1),
      "document_hashes": np.array(rows),
      **ragged("token_ids", [np.append([5, 6], words[row]) for row in rows]),
      **ragged("byte_ranges", [np.zeros((size, 2), int) for size in lengths]),
      **ragged("sentences", sentences),
      **ragged("salient_spans", [np.zeros((0, 2), int)] * len(rows)),
      **ragged("bodies", [b"words"] * len(rows)),
      **ragged("titles", [b"t"] * len(rows)),
      **ragged("document_ids", [f"d{row}".encode() for row in rows]),
      **ragged("urls", [b""] * len(rows)),
    }
  )


def fill(directory: Path, corpus: Corpus, step: int, **changes) -> Manifest:
  """Writes a generation's files, with vectors drawn from its step."""
  rng = np.random.default_rng(step)
  vectors = rng.standard_normal((corpus.num_blocks, DIM)).astype(np.float32)
  shards = embeddings.ShardLayout.of(
    corpus.num_blocks, DIM, dtype="float32", max_rows=corpus.num_blocks // 3
  )
  stored = embeddings.copy_vectors(vectors, directory, shards, step=step)
  query_tower.save(
    directory, {"tower": {"kernel": np.full((2, 3), step, np.float32)}}
  )
  settings = {
    "step": step,
    "corpus_fingerprint": corpus.fingerprint,
    "corpus_version": corpus.version,
    "num_blocks": corpus.num_blocks,
    "dim": DIM,
    "dtype": "float32",
    "index_kind": "exact",
    "index_parameters": {},
    "recall": {"8": 1.0},
    "recall_queries": 16,
    "embed_seconds": 1.0,
    "build_seconds": 0.5,
    "embeddings": stored,
  }
  return Manifest(**(settings | changes))


def publish_one(generations_dir: Path, corpus: Corpus, step: int, **changes):
  """Publishes a whole generation."""
  return publish(
    generations_dir,
    step,
    lambda directory: fill(directory, corpus, step, **changes),
  )


def files_of(generations_dir: Path, step: int) -> Path:
  """Returns the folder with the files of a published generation."""
  published = Path(layout.path_of(generations_dir, step))
  return published / manifests.read(published).folder


def prune(generations_dir: Path, **settings):
  """Removes what is not to stay, as the sidecar does."""
  steps = to_prune(generations_dir, **settings)
  publisher.remove(generations_dir, steps)
  return steps


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
  """150 blocks."""
  directory = tmp_path_factory.mktemp("corpus") / "corpus"
  return make_corpus(directory, num_blocks=150)


@pytest.fixture
def generations_dir(tmp_path) -> Path:
  """Where generations go; not there yet."""
  return tmp_path / "generations"
