"""Variables of TensorFlow 1 checkpoints and TF-Hub modules."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.mapping import Shape
from realm_jax.indexes.protocol import Rows

# TensorFlow must leave the GPUs to jax.
tf.config.set_visible_devices([], "GPU")

INDEX = ".index"
_ONLY_SHARD = ".data-00000-of-00001"
# Errors of TensorFlow's reader for damaged files.
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, IndexError)
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"


class TfCheckpoint:
  """Variables of one checkpoint, by name: a `TensorSource`.

  Args:
    prefix: Path of the checkpoint's files without their suffixes, such as
      `bert_model.ckpt` for `bert_model.ckpt.index`.
  """

  def __init__(self, prefix: Path):
    self.prefix = prefix
    if not prefix.with_name(prefix.name + INDEX).is_file():
      raise ConversionError(
        f"no TensorFlow checkpoint at {prefix}: it has no {prefix.name}{INDEX}"
      )
    try:
      self._reader = tf.train.load_checkpoint(str(prefix))
      shapes = self._reader.get_variable_to_shape_map()
    except _UNREADABLE as error:
      raise self._damaged(error) from error
    if _OBJECTS in shapes:
      raise ConversionError(
        f"{prefix} is a TensorFlow 2 checkpoint, whose variables are named by "
        "a program's objects; want one of TensorFlow 1, whose variables have "
        "names such as bert/embeddings/word_embeddings"
      )
    self.shapes: Mapping[str, Shape] = {
      name: tuple(shapes[name]) for name in sorted(shapes)
    }

  def read(self, name: str) -> np.ndarray:
    """Returns a variable in its stored dtype; bfloat16 is ml_dtypes'."""
    try:
      # Of a scalar, the reader returns no array.
      return np.asarray(self._reader.get_tensor(name))
    except _UNREADABLE as error:
      raise self._damaged(error) from error

  def rows(self, name: str) -> Rows:
    """Returns a variable that is read in slices, from the disk if possible.

    It is possible for the only variable of a checkpoint, as `block_emb` is:
    its one data file is the array. Its checksum is not verified then.
    """
    if name not in self.shapes:
      raise ConversionError(
        f"{self.prefix} has no variable {name}; it has "
        f"{', '.join(list(self.shapes)[:5]) or 'none'}"
      )
    shape = self.shapes[name]
    dtype = self._reader.get_variable_to_dtype_map()[name].as_numpy_dtype
    data = self.prefix.with_name(self.prefix.name + _ONLY_SHARD)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    is_only = len(self.shapes) == 1 and data.is_file()
    if is_only and size and data.stat().st_size == size:
      return np.memmap(data, dtype, mode="r", shape=shape)
    return self.read(name)

  def _damaged(self, error: Exception) -> ConversionError:
    lines = str(error).splitlines() or [type(error).__name__]
    return ConversionError(
      f"the checkpoint {self.prefix} cannot be read ({lines[0]}); copy all of "
      "its files again"
    )


def checkpoint_prefixes(directory: Path) -> list[Path]:
  """Returns the prefixes of the checkpoints in a directory."""
  return [
    path.with_name(path.name.removesuffix(INDEX))
    for path in sorted(directory.glob(f"*{INDEX}"))
  ]


def locate(path: Path) -> Path:
  """Returns a checkpoint's prefix, given as it is or by its directory."""
  if not path.is_dir():
    return path.with_name(path.name.removesuffix(INDEX))
  prefixes = checkpoint_prefixes(path)
  if not prefixes:
    raise ConversionError(
      f"no TensorFlow checkpoint in {path} (no file ends in {INDEX}); is "
      f"{path} the right --input?"
    )
  if len(prefixes) > 1:
    names = ", ".join(prefix.name for prefix in prefixes)
    raise ConversionError(
      f"{path} has {len(prefixes)} checkpoints: {names}; choose one, as "
      f"--input={prefixes[-1]}"
    )
  return prefixes[0]
