"""Tensors of `.safetensors` files, whole and in slices."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.directory import SafetensorsSource


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_tensor_is_read_as_it_is_stored(tmp_path, dtype):
  path = tmp_path / "model.safetensors"
  rng = np.random.default_rng(2)
  vectors = rng.standard_normal((30, 8)).astype(dtype)
  safetensors.numpy.save_file({"block_emb": vectors}, path)
  source = SafetensorsSource(path)
  rows = source.rows("block_emb")
  assert (rows.shape, rows.dtype) == (vectors.shape, vectors.dtype)
  for part in (slice(0, 7), slice(7, 30), slice(25, 99)):
    np.testing.assert_array_equal(rows[part], vectors[part])
  whole = source.read("block_emb")
  assert whole.dtype == dtype
  np.testing.assert_array_equal(whole, vectors)


def test_rows_of_integers_are_refused(tmp_path):
  path = tmp_path / "model.safetensors"
  safetensors.numpy.save_file({"block_emb": np.zeros((3, 2), np.int8)}, path)
  with pytest.raises(ConversionError, match="block_emb holds I8"):
    SafetensorsSource(path).rows("block_emb")
