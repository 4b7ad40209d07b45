"""The tokens of all blocks of a corpus, divided over the devices."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Shaped, UInt32

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.indexes.exact import capacity_for
from realm_jax.models.packing import content_numbers
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import MESH_AXES

_ROWS_PER_COPY = 1 << 14
_MAX_VOCABULARY_OF_16_BITS = 1 << 16
_TPU_LANES = 128


class BlockArrays(NamedTuple):
  """What a step reads of all blocks of a corpus, beside their vectors.

  The rows are divided over all devices, and padded as the vectors are.

  Attributes:
    tokens: `[CLS] title [SEP] body [SEP]` of each block, in 16 bits if the
      vocabulary fits, padded to the length of `null_tokens` at least.
    hashes: The two words of each block's content hash. They lie in arrays of
      their own because TPUs pad the last dimension of a matrix to 128.
    numbers: The number that each block's dropout masks are derived from.
    null_tokens: The null block, which is not stored among the others.
    null_number: The number of the null block.
  """

  tokens: Shaped[Array, "n c"]
  hashes: tuple[UInt32[Array, " n"], UInt32[Array, " n"]]
  numbers: UInt32[Array, " n"]
  null_tokens: Int[Array, " l"]
  null_number: UInt32[Array, ""]

  @classmethod
  def partitions(cls) -> Any:
    """Returns the partition of each array, in such a tuple."""
    divided: Any = PartitionSpec(MESH_AXES)
    whole: Any = PartitionSpec()
    return cls(divided, divided, divided, whole, whole)


def load_blocks(
  corpus: Corpus, *, block_length: int, mesh: Mesh
) -> BlockArrays:
  """Reads a corpus; each process reads the rows of its devices alone.

  It does not communicate, so that any thread may call it.

  Args:
    corpus: Corpus version that is searched.
    block_length: Padded length of a block.
    mesh: Devices that divide the blocks.
  """
  capacity = capacity_for(corpus.num_blocks, devices=mesh.size)
  by_blocks = NamedSharding(mesh, PartitionSpec(MESH_AXES))
  columns = stored_columns(block_length, mesh.devices.flat[0].platform)
  shares = []
  for device, index in by_blocks.addressable_devices_indices_map(
    (capacity,)
  ).items():
    assert index is not None
    start, stop, _ = index[0].indices(capacity)
    share = _share(corpus, start, stop, block_length, columns)
    shares.append(jax.device_put(share, device))

  def joined(*parts: jax.Array) -> jax.Array:
    return jax.make_array_from_single_device_arrays(
      (capacity, *parts[0].shape[1:]), by_blocks, parts
    )

  tokens, hashes, numbers = jax.tree.map(joined, *shares)
  null_tokens = corpus.gather(np.array([NULL_ROW]), block_length)[0]
  null_number = content_numbers(null_tokens)
  null: Any = sharding.replicate((null_tokens, null_number), mesh)
  return BlockArrays(tokens, hashes, numbers, *null)


def abstract_blocks(
  num_blocks: int, block_length: int, *, vocab_size: int, mesh: Mesh
) -> BlockArrays:
  """Returns the abstract arrays of a corpus, with their shardings.

  Args:
    num_blocks: Number of blocks.
    block_length: Padded length of a block.
    vocab_size: Number of wordpieces.
    mesh: Devices that divide the blocks.
  """
  capacity = capacity_for(num_blocks, devices=mesh.size)
  columns = stored_columns(block_length, mesh.devices.flat[0].platform)

  def abstract(partition: PartitionSpec, dtype: Any, *shape: int) -> Any:
    sharding = NamedSharding(mesh, partition)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  divided, whole = PartitionSpec(MESH_AXES), PartitionSpec()
  numbers = abstract(divided, jnp.uint32, capacity)
  return BlockArrays(
    tokens=abstract(divided, token_dtype(vocab_size), capacity, columns),
    hashes=(numbers, numbers),
    numbers=numbers,
    null_tokens=abstract(whole, jnp.int32, block_length),
    null_number=abstract(whole, jnp.uint32),
  )


def token_dtype(vocab_size: int) -> np.dtype:
  """Returns the type that holds a vocabulary's tokens in the least memory."""
  fits = vocab_size <= _MAX_VOCABULARY_OF_16_BITS
  return jnp.dtype(jnp.uint16 if fits else jnp.uint32)


def hash_words(
  hashes: Int[np.ndarray, " n"],
) -> UInt32[np.ndarray, "n 2"]:
  """Splits hashes in two, for devices, which have no 64-bit integers."""
  return np.ascontiguousarray(hashes, np.int64).view(np.uint32).reshape(-1, 2)


def stored_columns(block_length: int, platform: str) -> int:
  """Returns the tokens of a row as it is stored.

  TPUs gather rows that are padded to whole tiles. They would copy an array of
  other rows into such rows, at each step.
  """
  if platform != "tpu":
    return block_length
  return -(-block_length // _TPU_LANES) * _TPU_LANES


_Share = tuple[
  Shaped[np.ndarray, "n c"],
  tuple[UInt32[np.ndarray, " n"], UInt32[np.ndarray, " n"]],
  UInt32[np.ndarray, " n"],
]


def _share(
  corpus: Corpus,
  start: int,
  stop: int,
  length: int,
  columns: int,
) -> _Share:
  """Returns tokens, hashes and numbers; zeros stand for rows past N."""
  count = stop - start
  tokens = np.zeros((count, columns), token_dtype(corpus.vocab_size))
  hashes = np.zeros((count, 2), np.uint32)
  numbers = np.zeros(count, np.uint32)
  for rows in _parts(start, min(stop, corpus.num_blocks)):
    part = corpus.gather(np.arange(rows.start, rows.stop), length)
    place = slice(rows.start - start, rows.stop - start)
    tokens[place, :length] = part
    hashes[place] = hash_words(corpus.content_hashes[rows])
    numbers[place] = content_numbers(part)
  return tokens, (hashes[:, 0].copy(), hashes[:, 1].copy()), numbers


def _parts(start: int, stop: int) -> Iterator[slice]:
  for first in range(start, stop, _ROWS_PER_COPY):
    yield slice(first, min(first + _ROWS_PER_COPY, stop))
