"""A small corpus, and snapshots of it, for the tests of this folder."""

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath

from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.indexes.scann import ScannConfig
from realm_jax.snapshots.manifest import Manifest
from realm_jax.snapshots.store import SnapshotStore
from realm_jax.snapshots.vectors import (
  Draft,
  Embeddings,
  ShardLayout,
  index_blocks,
  save_query_tower,
)
from tests.json_lines import write_lines

DIM = 8
# An index of several files that is the same whenever it is built.
TREE = ScannConfig(
  brute_force_below=0,
  below_target=True,
  num_leaves=8,
  num_leaves_searched=8,
  num_reordered=100,
)
_WORDS = [f"w{i}" for i in range(10, 56)]
_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *"tw0123456789")


def make_corpus(directory: Path, *, num_blocks: int, seed: int = 0) -> Corpus:
  """Blocks of 1 to 8 sentences of random words, one a document `d<row>`."""
  rng = np.random.default_rng(seed)
  rows = []
  for row in range(num_blocks):
    words = rng.choice(_WORDS, (rng.integers(1, 9), 4)).tolist()
    text = "\n".join(" ".join(sentence) + "." for sentence in words)
    rows.append({"id": f"d{row}", "title": "t", "text": text})
  directory.parent.mkdir(exist_ok=True)
  text, vocab = (directory.with_name(f"{directory.name}-{n}") for n in "tv")
  vocab.write_text("\n".join([*_PIECES, *_WORDS]))
  build_corpus(
    [str(write_lines(text, rows))],
    directory,
    vocab=str(vocab),
    block_length=64,
    tagger=None,
  )
  return Corpus.open(directory)


def random_vectors(num_blocks: int, step: int) -> np.ndarray:
  """The vectors of a snapshot, drawn from its step."""
  rng = np.random.default_rng(step)
  return rng.standard_normal((num_blocks, DIM)).astype(np.float32)


def publish_one(
  snapshots_dir: epath.PathLike,
  corpus: Corpus,
  step: int,
  *,
  vectors: np.ndarray | None = None,
  index: IndexConfig | None = None,
  dtype: str = "float32",
  identity: str | None = None,
  **changes: Any,
) -> Manifest:
  """Publishes a snapshot in three files of vectors, without a model."""
  count = corpus.num_blocks
  vectors = random_vectors(count, step) if vectors is None else vectors
  layout = ShardLayout.of(count, DIM, dtype=dtype, max_rows=count // 3)
  store = SnapshotStore(snapshots_dir)
  draft = Draft(store.path(step) / (identity or secrets.token_hex(6)), layout)
  with store.disk_full_explained(step):
    for shard in range(len(layout)):
      rows = layout.rows(shard)
      draft.add(shard, vectors[rows])
    staged = draft.verified()
    save_query_tower(
      staged.root, {"tower": {"kernel": np.full((2, 3), step, np.float32)}}
    )
    if index is not None:
      embeddings = Embeddings(staged, layout)
      blocks = index_blocks(corpus, embeddings)
      index.build(blocks, staged.root / index.kind)
    others = draft.record_others(staged.root)
    settings = {
      "step": step,
      "corpus_fingerprint": corpus.fingerprint,
      "corpus_version": corpus.version,
      "num_blocks": count,
      "dim": DIM,
      "dtype": dtype,
      "index_kind": index.kind if index else "exact",
      "index_parameters": dict(vars(index or ExactConfig())),
      "recall": {"8": 1.0},
      "recall_queries": 16,
      "embed_seconds": 1.0,
      "build_seconds": 0.5,
      "oldest_step": step,
      "files": (*staged.records, *others),
      "folder": draft.folder.name,
      "index_folder": index.kind if index else "exact",
    }
    manifest = Manifest(**(settings | changes))
    store.commit(manifest)
  return manifest


def files_of(snapshots_dir: epath.PathLike, step: int) -> Path:
  """Returns the folder with the files of a published snapshot."""
  store = SnapshotStore(snapshots_dir)
  return Path(store.path(step)) / store.manifest(step).folder


def flip(path: Path, place: int = -1) -> None:
  """Flips a bit of a file."""
  data = bytearray(path.read_bytes())
  data[place] ^= 1
  path.write_bytes(data)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
  """150 blocks."""
  directory = tmp_path_factory.mktemp("corpus") / "corpus"
  return make_corpus(directory, num_blocks=150)


@pytest.fixture
def snapshots_dir(tmp_path) -> Path:
  """Where snapshots go; not there yet."""
  return tmp_path / "snapshots"
