"""The vectors of a generation, as arrays for other libraries."""

import json

import numpy as np
import pytest

from realm_jax.generations.manifest import GenerationError
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.weights import WeightsError, vectors
from realm_jax.weights.vectors import export_vectors
from tests.generations.conftest import DIM, make_corpus, publish_one

_BLOCKS = 30
_RETRIEVER = Retriever(BertConfig(), projection_size=DIM, score_scale=20.0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  directory = tmp_path_factory.mktemp("vectors") / "animals"
  return make_corpus(directory, num_blocks=_BLOCKS)


def _export(tmp_path, corpus, **changes):
  settings = {"corpus_dir": corpus.source, "retriever": _RETRIEVER} | changes
  export_vectors(tmp_path / "run", output_dir=tmp_path / "out", **settings)


def test_vectors_ids_and_their_description(tmp_path, corpus, monkeypatch):
  # Chunks of 7 rows do not end where the files of the generation do.
  monkeypatch.setattr(vectors, "_CHUNK_BYTES", 7 * 4 * DIM)
  for step in (4, 9):
    publish_one(tmp_path / "run" / "generations", corpus, step)
  out = tmp_path / "out"
  _export(tmp_path, corpus)
  array = np.load(out / "vectors.npy", mmap_mode="r", allow_pickle=False)
  assert array.dtype == np.float32
  # A generation of this test draws its vectors from its step.
  wanted = np.random.default_rng(9).standard_normal((_BLOCKS, DIM))
  np.testing.assert_array_equal(array, wanted.astype(np.float32))
  lines = (out / "blocks.jsonl").read_text(encoding="utf-8").splitlines()
  blocks = [json.loads(line) for line in lines]
  assert blocks == [{"id": f"d{i}:0", "title": "t"} for i in range(_BLOCKS)]
  said = json.loads((out / "vectors.json").read_text(encoding="utf-8"))
  assert said["checkpoint_step"] == 9
  assert said["corpus_fingerprint"] == corpus.fingerprint
  assert (said["num_blocks"], said["dimension"]) == (_BLOCKS, DIM)
  assert (said["dtype"], said["stored_dtype"]) == ("float32", "float32")
  assert (said["score_scale"], said["normalized"]) == (20.0, False)


def test_bfloat16_becomes_float32_without_rounding(tmp_path, corpus):
  rng = np.random.default_rng(0)
  # Eight bits of mantissa, which bfloat16 has.
  values = rng.integers(-128, 128, (_BLOCKS, DIM)).astype(np.float32) * 1024
  generations = tmp_path / "run" / "generations"
  publish_one(generations, corpus, 3, vectors=values, dtype="bfloat16")
  _export(tmp_path, corpus, checkpoint_step=3)
  array = np.load(tmp_path / "out" / "vectors.npy", allow_pickle=False)
  np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize(
  ("changes", "error", "word"),
  [
    ({"checkpoint_step": 5}, GenerationError, "not a generation"),
    ({"generations_dir": "none"}, GenerationError, "build_index --once"),
    (
      {"retriever": _RETRIEVER.clone(projection_size=DIM + 1)},
      WeightsError,
      f"vectors of {DIM} dimensions",
    ),
    ({"corpus_dir": "other"}, GenerationError, "of another corpus"),
  ],
)
def test_what_does_not_fit_is_refused(tmp_path, corpus, changes, error, word):
  publish_one(tmp_path / "run" / "generations", corpus, 4)
  make_corpus(tmp_path / "other", num_blocks=_BLOCKS, seed=1)
  for name in ("generations_dir", "corpus_dir"):
    if name in changes:
      changes = {**changes, name: tmp_path / changes[name]}
  with pytest.raises(error, match=word):
    _export(tmp_path, corpus, **changes)
  assert not (tmp_path / "out").exists()
