"""Vectors that are known already are copied a part at a time."""

import numpy as np
import pytest

from realm_jax.generations import embeddings
from realm_jax.generations.manifest import GenerationError

_ROWS, _DIM = 150_000, 4


class Watched:
  """Vectors that keep count of how many are asked for at once."""

  def __init__(self, array):
    self._array = array
    self.shape, self.dtype = array.shape, array.dtype
    self.most = 0

  def __getitem__(self, rows):
    part = self._array[rows]
    self.most = max(self.most, len(part))
    return part


def writer(directory, *, rows=_ROWS, **settings):
  return embeddings.EmbeddingsWriter(
    directory, num_blocks=rows, dim=_DIM, **settings
  )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_arrive_in_order_and_few_at_a_time(tmp_path, dtype):
  known = np.arange(_ROWS * _DIM, dtype=np.float32).reshape(_ROWS, _DIM)
  vectors = Watched(known)
  # Three files, whose bounds are not those of the parts.
  target = writer(tmp_path, dtype=dtype, shard_bytes=_ROWS * _DIM)
  checks = []
  embeddings.copy(vectors, target, check=lambda: checks.append(1))
  target.close()
  assert vectors.most <= 1 << 16
  assert len(checks) == 3
  wanted = known.astype(embeddings.DTYPES[dtype])
  stored = np.concatenate(
    [np.load(tmp_path / shard.path) for shard in target.shards]
  )
  assert stored.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("shape", [(9, _DIM), (11, _DIM), (10, 3), (10,)])
def test_another_shape_is_refused(tmp_path, shape):
  with pytest.raises(GenerationError, match="10 blocks and a retriever of 4"):
    embeddings.copy(np.zeros(shape, np.float32), writer(tmp_path, rows=10))
