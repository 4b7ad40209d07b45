"""The vectors of a snapshot, as arrays for other libraries."""

import json

import faiss
import numpy as np
import pytest

from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import BertRetriever
from realm_jax.weights import exporting
from realm_jax.weights.exporting import export_vectors
from tests.snapshots.conftest import DIM, make_corpus, publish_one

_BLOCKS = 30
_RETRIEVER = BertRetriever(BertConfig(), projection_size=DIM, score_scale=20.0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  directory = tmp_path_factory.mktemp("vectors") / "animals"
  return make_corpus(directory, num_blocks=_BLOCKS)


def test_vectors_ids_and_their_description(tmp_path, corpus, monkeypatch):
  # Chunks of 7 rows do not end where the files of the snapshot do.
  monkeypatch.setattr(exporting, "_CHUNK_BYTES", 7 * 4 * DIM)
  # Eight bits of mantissa, which bfloat16 has.
  values = np.random.default_rng(0).integers(-128, 128, (_BLOCKS, DIM)) * 1024.0
  snapshots = tmp_path / "run" / "snapshots"
  publish_one(snapshots, corpus, 4)
  publish_one(snapshots, corpus, 9, vectors=values, dtype="bfloat16")
  out = tmp_path / "out"
  export_vectors(
    tmp_path / "run",
    output_dir=out,
    corpus_dir=corpus.source,
    retriever=_RETRIEVER,
  )
  array = np.load(out / "vectors.npy", mmap_mode="r", allow_pickle=False)
  assert array.dtype == np.float32
  np.testing.assert_array_equal(array, values)
  lines = (out / "blocks.jsonl").read_text(encoding="utf-8").splitlines()
  blocks = [json.loads(line) for line in lines]
  assert blocks == [{"id": f"d{i}:0", "title": "t"} for i in range(_BLOCKS)]
  index = tmp_path / "index"
  export_vectors(
    tmp_path / "run",
    output_dir=index,
    corpus_dir=corpus.source,
    retriever=_RETRIEVER,
    to="faiss",
  )
  flat = faiss.read_index(str(index / "index.faiss"))
  np.testing.assert_array_equal(flat.reconstruct_n(0, _BLOCKS), values)
  queries = np.ones((1, DIM), np.float32)
  scores, (rows,) = flat.search(queries, 3)
  best = np.argsort(-values.sum(axis=1), kind="stable")[:3]
  assert rows.tolist() == best.tolist()
  np.testing.assert_array_equal(scores[0], values[best].sum(axis=1))
  names = {"blocks.jsonl", "index.faiss", "vectors.json"}
  assert {path.name for path in index.iterdir()} == names
  assert (index / "blocks.jsonl").read_text() == "\n".join([*lines, ""])
  description = json.loads((out / "vectors.json").read_text(encoding="utf-8"))
  assert description["checkpoint_step"] == 9
  assert description["corpus_fingerprint"] == corpus.fingerprint
  assert (description["num_blocks"], description["dimension"]) == (_BLOCKS, DIM)
  assert (description["dtype"], description["stored_dtype"]) == (
    "float32",
    "bfloat16",
  )
  assert (description["score_scale"], description["normalized"]) == (
    20.0,
    False,
  )
