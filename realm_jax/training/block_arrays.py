"""The arrays of all blocks, on the devices, that a step searches itself.

The rows are sharded over all devices, and padded.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree, Shaped, UInt32

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.indexes import exact_search
from realm_jax.indexes.exact import capacity_for
from realm_jax.inputs.reader_texts import passage_ids
from realm_jax.models.components import TextReader
from realm_jax.models.packing import content_ids
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import MESH_AXES
from realm_jax.training.encoder_inputs import to_words

_ROWS_PER_COPY = 1 << 14
_MAX_VOCABULARY_OF_16_BITS = 1 << 16
_TPU_LANES = 128


class BlockArrays(NamedTuple):
  """Arrays of all blocks of a corpus, in addition to their vectors.

  The rows are sharded over all devices, and padded like the vectors.

  Attributes:
    tokens: `[CLS] title [SEP] body [SEP]` of each block, in 16 bits if the
      vocabulary fits, padded at least to the length of `null_tokens`.
    marks: The two words of each block's content hash, and its dropout id, as
      separate arrays, because TPUs pad the last dimension of a matrix to 128.
    null_tokens: Tokens of the null block, which is not among the others.
    null_dropout_id: Dropout id of the null block.
    passages: Passage of each block for the stage's reader, in 16 bits if its
      vocabulary fits; None if the reader reads the tokens.
  """

  tokens: Shaped[Array, "n c"]
  marks: tuple[UInt32[Array, " n"], ...]
  null_tokens: Int[Array, " l"]
  null_dropout_id: UInt32[Array, ""]
  passages: Shaped[Array, "n m"] | None = None

  @classmethod
  def partitions(cls) -> Any:
    """Returns a tuple with the partition of each array."""
    divided: Any = PartitionSpec(MESH_AXES)
    whole: Any = PartitionSpec()
    return cls(divided, divided, whole, whole, divided)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SearchedBlocks:
  """The arrays that a step searches: a snapshot's, or a rolling index's.

  Attributes:
    query_params: Parameters of the query tower for the search; empty if the
      current parameters are used.
    vectors: Vectors [n, d] of all blocks; None for a rolling index, whose
      vectors are part of the training state.
    count: Number of blocks, without padding.
    blocks: `BlockArrays` of all blocks.
    plan: Settings of the search, which are static in the program.
  """

  # jax also builds such trees with leaves that are not arrays.
  query_params: PyTree
  vectors: Any
  count: Any
  blocks: Any
  plan: exact_search.SearchPlan = dataclasses.field(metadata={"static": True})


def load_blocks(
  corpus: Corpus,
  *,
  block_length: int,
  mesh: Mesh,
  reader: TextReader | None = None,
) -> BlockArrays:
  """Loads the blocks; each process reads only the rows of its devices.

  Does not communicate, so any thread may call it. With a `reader`, also loads
  the reader's passages.
  """
  shapes = abstract_blocks(
    *(corpus.num_blocks, block_length),
    vocab_size=corpus.vocab_size,
    mesh=mesh,
    reader=reader,
  )
  capacity, _ = shapes.tokens.shape
  # Rows past the last block are zeros.
  marks = np.zeros((3, capacity), np.uint32)
  marks[:2, : corpus.num_blocks] = to_words(corpus.content_hashes).T

  def on_devices(abstract: Any, read: Callable[[Any], np.ndarray]) -> jax.Array:
    def of_device(index: Any) -> np.ndarray:
      start, stop, _ = index[0].indices(capacity)
      array = np.zeros((stop - start, abstract.shape[1]), abstract.dtype)
      last = min(stop, corpus.num_blocks)
      for first in range(start, last, _ROWS_PER_COPY):
        rows = np.arange(first, min(first + _ROWS_PER_COPY, last))
        part = read(rows)
        array[rows - start, : part.shape[1]] = part
      return array

    shape, placed = abstract.shape, abstract.sharding
    return jax.make_array_from_callback(shape, placed, of_device)

  def tokens_of(rows: Int[np.ndarray, " n"]) -> np.ndarray:
    part = corpus.gather(rows, block_length)
    marks[2, rows] = content_ids(part)
    return part

  tokens, passages = on_devices(shapes.tokens, tokens_of), None
  if reader is not None:
    view = corpus.view(reader.view)
    passages = on_devices(
      shapes.passages, functools.partial(passage_ids, reader, view)
    )
  null_tokens = corpus.gather(np.array([NULL_ROW]), block_length)[0]
  null: Any = null_tokens, content_ids(null_tokens)
  return BlockArrays(
    tokens,
    tuple(
      jax.make_array_from_callback(
        (capacity,),
        shapes.marks[0].sharding,
        lambda index, mark=mark: mark[index].copy(),
      )
      for mark in marks
    ),
    *sharding.replicate(null, mesh),
    passages=passages,
  )


def abstract_blocks(
  num_blocks: int,
  block_length: int,
  *,
  vocab_size: int,
  mesh: Mesh,
  reader: TextReader | None = None,
) -> BlockArrays:
  """Returns the abstract arrays of a corpus, with their shardings."""
  capacity = capacity_for(num_blocks, devices=mesh.size)
  # TPUs gather rows that are padded to whole tiles; otherwise each step would
  # copy the array to a padded one.
  is_tpu = mesh.devices.flat[0].platform == "tpu"
  lanes = _TPU_LANES if is_tpu else 1

  def abstract(partition: PartitionSpec, dtype: Any, *shape: int) -> Any:
    placed = NamedSharding(mesh, partition)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=placed)

  divided, whole = PartitionSpec(MESH_AXES), PartitionSpec()

  def tokens(size: int, length: int) -> Any:
    is_small = size <= _MAX_VOCABULARY_OF_16_BITS
    dtype = jnp.uint16 if is_small else jnp.uint32
    return abstract(divided, dtype, capacity, -(-length // lanes) * lanes)

  passages = None
  if reader is not None:
    assert reader.vocab_size is not None
    passages = tokens(reader.vocab_size, reader.input_length)
  return BlockArrays(
    tokens=tokens(vocab_size, block_length),
    marks=(abstract(divided, jnp.uint32, capacity),) * 3,
    null_tokens=abstract(whole, jnp.int32, block_length),
    null_dropout_id=abstract(whole, jnp.uint32),
    passages=passages,
  )
