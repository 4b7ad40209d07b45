"""All blocks on the devices: the tokens of a corpus, beside its vectors.

A step that searches reads both. Each device has its share of the rows.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree, Shaped, UInt32

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.indexes.exact import capacity_for
from realm_jax.indexes.exact_search import Plan
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


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["query_params", "vectors", "count", "blocks"],
  meta_fields=["plan"],
)
@dataclasses.dataclass(frozen=True)
class SearchedBlocks:
  """What a step searches: a generation, or the run's own index.

  Attributes:
    query_params: Parameters of the query tower that embeds the queries; none
      if the current parameters do.
    vectors: Vectors [n, d] of all blocks; None of a run that keeps its own
      index, for they are part of its state.
    count: Number of blocks, without padding.
    blocks: Tokens of all blocks, as `BlockArrays`.
    plan: Settings of the search, which are part of the program.
  """

  # jax also makes trees of such objects that have no arrays.
  query_params: PyTree
  vectors: Any
  count: Any
  blocks: Any
  plan: Plan


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
  shapes = abstract_blocks(
    corpus.num_blocks, block_length, vocab_size=corpus.vocab_size, mesh=mesh
  )
  capacity, columns = shapes.tokens.shape
  # Zeros stand for rows past the last block.
  numbers = np.zeros(capacity, np.uint32)
  hashes = np.zeros((capacity, 2), np.uint32)
  hashes[: corpus.num_blocks] = hash_words(corpus.content_hashes)

  def tokens_of_device(index: Any) -> np.ndarray:
    start, stop, _ = index[0].indices(capacity)
    tokens = np.zeros((stop - start, columns), shapes.tokens.dtype)
    last = min(stop, corpus.num_blocks)
    for first in range(start, last, _ROWS_PER_COPY):
      rows = np.arange(first, min(first + _ROWS_PER_COPY, last))
      part = corpus.gather(rows, block_length)
      tokens[rows - start, :block_length] = part
      numbers[rows] = content_numbers(part)
    return tokens

  def divided(values: np.ndarray) -> jax.Array:
    placed = shapes.numbers.sharding
    return jax.make_array_from_callback(
      values.shape, placed, lambda index: values[index].copy()
    )

  tokens = jax.make_array_from_callback(
    shapes.tokens.shape, shapes.tokens.sharding, tokens_of_device
  )
  null_tokens = corpus.gather(np.array([NULL_ROW]), block_length)[0]
  null: Any = null_tokens, content_numbers(null_tokens)
  return BlockArrays(
    tokens,
    (divided(hashes[:, 0]), divided(hashes[:, 1])),
    divided(numbers),
    *sharding.replicate(null, mesh),
  )


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
  columns = block_length
  if mesh.devices.flat[0].platform == "tpu":
    # TPUs gather rows that are padded to whole tiles. They would copy an array
    # of other rows into such rows, at each step.
    columns = -(-block_length // _TPU_LANES) * _TPU_LANES
  is_small = vocab_size <= _MAX_VOCABULARY_OF_16_BITS

  def abstract(partition: PartitionSpec, dtype: Any, *shape: int) -> Any:
    placed = NamedSharding(mesh, partition)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=placed)

  divided, whole = PartitionSpec(MESH_AXES), PartitionSpec()
  numbers = abstract(divided, jnp.uint32, capacity)
  token_type = jnp.uint16 if is_small else jnp.uint32
  return BlockArrays(
    tokens=abstract(divided, token_type, capacity, columns),
    hashes=(numbers, numbers),
    numbers=numbers,
    null_tokens=abstract(whole, jnp.int32, block_length),
    null_number=abstract(whole, jnp.uint32),
  )


def hash_words(
  hashes: Int[np.ndarray, " n"],
) -> UInt32[np.ndarray, "n 2"]:
  """Splits hashes in two, for devices, which have no 64-bit integers."""
  return np.ascontiguousarray(hashes, np.int64).view(np.uint32).reshape(-1, 2)
