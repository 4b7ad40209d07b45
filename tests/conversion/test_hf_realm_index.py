"""The blocks of a RealmForOpenQA and their vectors are searched here."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.exporting import export_weights
from realm_jax.conversion.importing import import_weights
from realm_jax.conversion.safetensors_source import SafetensorsSource
from realm_jax.corpus.store import Corpus
from realm_jax.generations.loaded import load_newest
from tests import tiny_world

_COUNT, _SIZE = 30, 8


@pytest.fixture(scope="module")
def open_qa(world, tmp_path_factory):
  """A directory as transformers saves one, with its index."""
  folder = tmp_path_factory.mktemp("open_qa")
  world.save_checkpoint(folder / "run")
  (folder / "run" / "vocab.txt").write_text(
    "\n".join(tiny_world.pieces()), encoding="utf-8"
  )
  export_weights(
    model_dir=folder / "run",
    output_dir=folder / "hf",
    retriever=tiny_world.RETRIEVER,
    reader=tiny_world.READER,
    to="hf_realm",
    model="open_qa",
  )
  weights = safetensors.numpy.load_file(folder / "hf" / "model.safetensors")
  weights["block_emb"] = _vectors()
  safetensors.numpy.save_file(weights, folder / "hf" / "model.safetensors")
  np.save(folder / "hf" / "block_records.npy", np.array(_records(), object))
  return folder / "hf"


def _vectors():
  rng = np.random.default_rng(2)
  return rng.standard_normal((_COUNT, _SIZE), np.float32)


def _records():
  return [f"Ada was born in {i}.".encode() for i in range(_COUNT)]


def test_its_index_becomes_a_corpus_and_a_generation(open_qa, tmp_path):
  report = import_weights(
    "hf_realm",
    str(open_qa),
    tmp_path / "run",
    corpus_dir=tmp_path / "corpus",
    index="exact",
  )
  assert f"block_emb [{_COUNT}, {_SIZE}]: " in report
  corpus = Corpus.open(tmp_path / "corpus")
  rows = np.arange(_COUNT)
  assert [corpus.body(row).encode() for row in rows] == _records()
  generation = load_newest(tmp_path / "run" / "generations", corpus=corpus)
  np.testing.assert_array_equal(generation.vectors(rows), _vectors())


def test_without_a_corpus_directory_the_index_is_left(open_qa, tmp_path):
  report = import_weights("hf_realm", str(open_qa), tmp_path / "run")
  assert "block vectors [30, 8]: left; --corpus_dir imports" in report
  assert not (tmp_path / "run" / "generations").exists()


def test_records_of_another_release_are_refused(open_qa, tmp_path):
  np.save(tmp_path / "few.npy", np.array(_records()[:-1], object))
  with pytest.raises(ConversionError, match="30 block vectors, and 29 records"):
    import_weights(
      "hf_realm",
      str(open_qa),
      tmp_path / "run",
      corpus_dir=tmp_path / "corpus",
      block_records=str(tmp_path / "few.npy"),
    )
  assert [p.name for p in tmp_path.iterdir()] == ["few.npy"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rows_are_read_in_slices(tmp_path, dtype):
  path = tmp_path / "model.safetensors"
  vectors = _vectors().astype(dtype)
  safetensors.numpy.save_file({"block_emb": vectors}, path)
  rows = SafetensorsSource(path).rows("block_emb")
  assert (rows.shape, rows.dtype) == (vectors.shape, vectors.dtype)
  for part in (slice(0, 7), slice(7, 30), slice(25, 99)):
    np.testing.assert_array_equal(rows[part], vectors[part])


def test_rows_of_integers_are_refused(tmp_path):
  path = tmp_path / "model.safetensors"
  safetensors.numpy.save_file({"block_emb": np.zeros((3, 2), np.int8)}, path)
  with pytest.raises(ConversionError, match="block_emb holds I8"):
    SafetensorsSource(path).rows("block_emb")
