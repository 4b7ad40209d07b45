"""Candidates that a compiled program finds, without a copy from the host.

The vectors and the tokens of all blocks lie on the devices, each of which has
its share of the rows and answers for it. What the devices exchange is of the
size of a batch: query vectors, scores, row numbers, and the tokens of the
candidates.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, Shaped, UInt32

from realm_jax.indexes import exact_search
from realm_jax.partitioning.mesh import BATCH_AXES, MESH_AXES, MODEL_AXIS
from realm_jax.retrieval.candidate_rows import (
  NULL_ROW,
  with_null,
  without_source,
)

# Two tokens of 16 bits are exchanged as one word: collectives that add support
# 32 bits everywhere.
_TOKENS_PER_WORD = 2


class BlockArrays(NamedTuple):
  """What a step reads of all blocks of a corpus, beside their vectors.

  The rows are divided over all devices, and padded as the vectors are.

  Attributes:
    tokens: `[CLS] title [SEP] body [SEP]` of each block, padded, in 16 bits if
      the vocabulary fits.
    marks: The two words of each block's content hash, and the number that its
      dropout masks are derived from.
    null_tokens: The null block, which is not stored among the others.
    null_number: The number of the null block.
  """

  tokens: Shaped[Array, "n l"]
  marks: UInt32[Array, "n 3"]
  null_tokens: Int[Array, " l"]
  null_number: UInt32[Array, ""]

  @classmethod
  def partitions(cls) -> "BlockArrays":
    """Returns how the mesh divides each array."""
    divided, whole = PartitionSpec(MESH_AXES), PartitionSpec()
    return cls(divided, divided, whole, whole)  # type: ignore[arg-type]


class Candidates(NamedTuple):
  """The candidates of each query, of which the null block is the first.

  Attributes:
    tokens: Padded tokens.
    numbers: Number of each block, from which dropout makes its masks.
  """

  tokens: Int[Array, "b k l"]
  numbers: UInt32[Array, "b k"]


class SearchedVectors(NamedTuple):
  """The vectors of an exact index, and how many of them are no padding."""

  vectors: Float[Array, "n d"]
  count: Int[Array, ""]


def find_candidates(
  queries: Float[Array, "b d"],
  source_hashes: UInt32[Array, "b 2"],
  searched: SearchedVectors,
  blocks: BlockArrays,
  *,
  plan: exact_search.Plan,
  num_kept: int,
  mesh: Mesh,
) -> Candidates:
  """Searches, drops what has the source's hash, and gathers the tokens.

  The result is that of the same search on the host, followed by
  `without_source` and `with_null`.

  Args:
    queries: Vectors of the queries, sharded as a batch.
    source_hashes: Content hash of each query's source, in two words.
    searched: Vectors of all blocks.
    blocks: Tokens of all blocks.
    plan: Settings of the search.
    num_kept: Number of candidates of a query beside the null block.
    mesh: Mesh of all devices.
  """
  _, rows = exact_search.search(queries, *searched, plan=plan, mesh=mesh)

  def on_each_device(
    rows: Int[Array, "b n"],
    source_hashes: UInt32[Array, "b 2"],
    blocks: BlockArrays,
  ) -> Candidates:
    marks = _fetch(blocks.marks, rows)
    is_source = (marks[..., :2] == source_hashes[:, None]).all(axis=-1)
    place = jnp.broadcast_to(jnp.arange(rows.shape[1]), rows.shape)
    place = without_source(place, is_source, num_kept=num_kept)
    kept = jnp.maximum(place, 0)
    tokens = fetch_tokens(
      blocks.tokens, jnp.take_along_axis(rows, kept, axis=1)
    )
    numbers = jnp.take_along_axis(marks[..., 2], kept, axis=1)
    # Only now the null block comes in front: nobody need fetch it.
    is_null = with_null(place) == NULL_ROW
    tokens = jnp.pad(tokens, ((0, 0), (1, 0), (0, 0)))
    numbers = jnp.pad(numbers, ((0, 0), (1, 0)))
    null = jnp.broadcast_to(blocks.null_tokens, tokens.shape)
    return Candidates(
      jnp.where(is_null[..., None], null, tokens),
      jnp.where(is_null, blocks.null_number, numbers),
    )

  by_group = PartitionSpec(BATCH_AXES)
  return jax.shard_map(
    on_each_device,
    mesh=mesh,
    in_specs=(by_group, by_group, BlockArrays.partitions()),
    out_specs=by_group,
    check_vma=False,
  )(rows, source_hashes, blocks)


def fetch_tokens(
  own: Shaped[Array, "n l"], rows: Int[Array, "b k"]
) -> Int[Array, "b k l"]:
  """Returns the tokens of rows, zeros for the null row."""
  if own.dtype != jnp.uint16:
    return _fetch(own, rows).astype(jnp.int32)
  length = own.shape[-1]

  def as_words(tokens: Shaped[Array, "b k l"]) -> UInt32[Array, "b k w"]:
    odd = ((0, 0), (0, 0), (0, length % _TOKENS_PER_WORD))
    pairs = jnp.pad(tokens, odd).reshape(*tokens.shape[:2], -1, 2)
    return lax.bitcast_convert_type(pairs, jnp.uint32)

  words = _fetch(own, rows, as_words)
  pairs = lax.bitcast_convert_type(words, jnp.uint16)
  tokens = pairs.reshape(*rows.shape, -1)[..., :length]
  return tokens.astype(jnp.int32)


def _fetch(
  own: Shaped[Array, "n f"],
  rows: Int[Array, "b k"],
  encode: Callable[[Array], Array] = lambda found: found,
) -> Shaped[Array, "b k _"]:
  """Returns rows of an array whose rows are divided over all devices.

  Each device looks up the rows of all queries that it has. One of them has
  each row and the others add zeros, so a reduce-scatter gives each group of
  devices what its own queries asked for. `encode` is applied before.
  """
  everyone = lax.all_gather(rows, BATCH_AXES, tiled=True)
  local = everyone - lax.axis_index(MESH_AXES) * len(own)
  is_own = (local >= 0) & (local < len(own))
  found = own[jnp.clip(local, 0, len(own) - 1)]
  found = encode(jnp.where(is_own[..., None], found, 0))
  found = lax.psum_scatter(found, BATCH_AXES, scatter_dimension=0, tiled=True)
  if lax.axis_size(MODEL_AXIS) > 1:
    # The devices of a group have asked for the same rows.
    found = lax.psum(found, MODEL_AXIS)
  return found
