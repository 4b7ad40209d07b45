"""A small corpus, and generations of it, for the tests of this folder."""

from pathlib import Path

import numpy as np
import pytest

from realm_jax.corpus.building.directory_writer import CorpusDirectoryWriter
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
  with CorpusDirectoryWriter.open(
    directory, pieces=PIECES, blocks_per_shard=100
  ) as writer:
    for i in range(num_blocks):
      words = rng.integers(5, len(PIECES), rng.integers(4, 41))
      starts = np.arange(0, len(words), 4)
      limits = np.minimum(starts + 4, len(words))
      shard = writer.shard
      shard.add_document(document_id=f"d{i}", title="t", url="", num_blocks=1)
      shard.add_block(
        block_id=i,
        content_hash=-i,
        title_length=2,
        token_ids=np.concatenate([[5, 6], words]),
        byte_ranges=np.zeros((len(words), 2), np.int32),
        sentences=np.stack([starts, limits], axis=1),
        salient_spans=np.zeros((0, 2), np.int32),
        salient_span_kinds=[],
        body=b"words",
      )
    writer.finish(version=1, block_length=64, summary={})
  return Corpus.open(directory)


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
