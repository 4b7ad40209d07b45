"""The tokens of all blocks of a corpus, divided over the devices."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, Shaped, UInt32

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.indexes.exact import capacity_for
from realm_jax.models.packing import content_numbers
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import MESH_AXES
from realm_jax.retrieval.device_candidates import BlockArrays

_ROWS_PER_COPY = 1 << 14
_MAX_VOCABULARY_OF_16_BITS = 1 << 16


@dataclasses.dataclass(frozen=True)
class TokenStore:
  """The arrays of one corpus version, on the devices."""

  arrays: BlockArrays

  @classmethod
  def of(
    cls,
    corpus: Corpus,
    retriever: Retriever,
    *,
    block_length: int,
    mesh: Mesh,
  ) -> "TokenStore":
    """Reads a corpus; each process reads the rows of its devices alone.

    It does not communicate, so that any thread may call it.

    Args:
      corpus: Corpus version that is searched.
      retriever: Retriever whose block tower reads the blocks.
      block_length: Padded length of a block.
      mesh: Devices that divide the blocks.
    """
    capacity = capacity_for(corpus.num_blocks, devices=mesh.size)
    sharding = NamedSharding(mesh, PartitionSpec(MESH_AXES))
    shape = (capacity, block_length)
    tokens, marks = [], []
    for device, index in sharding.addressable_devices_indices_map(
      shape
    ).items():
      assert index is not None
      start, stop, _ = index[0].indices(capacity)
      own = _share(corpus, retriever, start, stop, block_length)
      tokens.append(jax.device_put(own[0], device))
      marks.append(jax.device_put(own[1], device))
    null = corpus.gather(np.array([NULL_ROW]), block_length)
    number = content_numbers(np.asarray(retriever.block_input(null)))
    join = jax.make_array_from_single_device_arrays
    return cls(
      BlockArrays(
        tokens=join(shape, sharding, tokens),
        marks=join((capacity, 3), sharding, marks),
        null_tokens=rules.replicate(null[0], mesh),
        null_number=rules.replicate(number.reshape(()), mesh),
      )
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


def _share(
  corpus: Corpus, retriever: Retriever, start: int, stop: int, length: int
) -> tuple[Shaped[np.ndarray, "n l"], UInt32[np.ndarray, "n 3"]]:
  """Returns tokens and marks of some rows; zeros stand for those past N."""
  tokens = np.zeros((stop - start, length), token_dtype(corpus.vocab_size))
  marks = np.zeros((stop - start, 3), np.uint32)
  for rows in _parts(start, min(stop, corpus.num_blocks)):
    part = corpus.gather(np.arange(rows.start, rows.stop), length)
    place = slice(rows.start - start, rows.stop - start)
    tokens[place] = part
    marks[place, :2] = hash_words(corpus.content_hashes[rows])
    marks[place, 2] = content_numbers(np.asarray(retriever.block_input(part)))
  return tokens, marks


def _parts(start: int, stop: int) -> Iterator[slice]:
  for first in range(start, stop, _ROWS_PER_COPY):
    yield slice(first, min(first + _ROWS_PER_COPY, stop))
