"""Variables come out of TensorFlow's checkpoints as they were put in."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.checkpoint import TfCheckpoint, locate
from tests.conversion.google import checkpoint_files as files

_VARIABLES = {
  "bert/a": np.arange(6, dtype=np.float32).reshape(2, 3),
  "bert/half": np.array([1.5, -2], ml_dtypes.bfloat16),
  "global_step": np.int64(7),
}


def test_variables_by_name_in_their_own_type(tmp_path):
  checkpoint = TfCheckpoint(files.save(tmp_path / "model.ckpt-7", _VARIABLES))
  assert checkpoint.shapes == {
    "bert/a": (2, 3),
    "bert/half": (2,),
    "global_step": (),
  }
  for name, value in _VARIABLES.items():
    read = checkpoint.read(name)
    assert read.dtype == value.dtype
    np.testing.assert_array_equal(read, value)


def test_a_variable_alone_stays_on_the_disk(tmp_path):
  vectors = np.random.default_rng(0).standard_normal((50, 4), np.float32)
  prefix = files.save(tmp_path / "encoded.ckpt", {"block_emb": vectors})
  rows = TfCheckpoint(prefix).rows("block_emb")
  assert isinstance(rows, np.memmap)
  np.testing.assert_array_equal(rows[10:20], vectors[10:20])
  # Beside another it is read as any variable.
  more = {"another": np.ones((3, 4), np.float32), "block_emb": vectors}
  prefix = files.save(tmp_path / "more.ckpt", more)
  np.testing.assert_array_equal(TfCheckpoint(prefix).rows("block_emb"), vectors)
  with pytest.raises(ConversionError, match="no variable block_emb; it has x"):
    TfCheckpoint(files.save(tmp_path / "x", {"x": vectors})).rows("block_emb")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
  with pytest.raises(ConversionError, match=r"it has no model\.ckpt\.index"):
    TfCheckpoint(tmp_path / "model.ckpt")
  with pytest.raises(ConversionError, match="no file ends in"):
    locate(tmp_path)


@pytest.mark.parametrize("end", [".index", ".data-00000-of-00001"])
def test_a_damaged_checkpoint_is_refused(tmp_path, end):
  prefix = files.save(tmp_path / "model.ckpt", _VARIABLES)
  path = prefix.with_name(prefix.name + end)
  path.write_bytes(path.read_bytes()[:-12])
  with pytest.raises(ConversionError, match="cannot be read"):
    TfCheckpoint(prefix).read("bert/half")


def test_a_changed_byte_is_found(tmp_path):
  prefix = files.save(tmp_path / "model.ckpt", _VARIABLES)
  path = prefix.with_name(prefix.name + ".data-00000-of-00001")
  changed = bytearray(path.read_bytes())
  changed[5] ^= 1
  path.write_bytes(changed)
  with pytest.raises(ConversionError, match="cannot be read"):
    TfCheckpoint(prefix).read("bert/a")


def test_a_checkpoint_of_objects_is_refused(tmp_path):
  saved = tf.train.Checkpoint(x=tf.Variable(1.0)).write(str(tmp_path / "two"))
  with pytest.raises(ConversionError, match="TensorFlow 2 checkpoint"):
    TfCheckpoint(tmp_path / saved)
