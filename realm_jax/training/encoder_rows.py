"""Candidates, and what the encoders of a stage read of them.

Inputs are made in the step, of the padded arrays of one device's examples, or
of a part of them. The functions that choose candidates take numpy's arrays and
jax's alike: on the host, and inside a compiled program.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from realm_jax.models import AnyArray, packing
from realm_jax.models.packing import TokenRows
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.models.sequences import Sequences

NULL_ROW = -1


class Candidates(NamedTuple):
  """The blocks of each query, of which the null block is the first.

  Attributes:
    tokens: Padded tokens, `[CLS] title [SEP] body [SEP]`.
    numbers: Number of each block, from which dropout makes its masks.
  """

  tokens: Int[AnyArray, "b k l"]
  numbers: UInt32[AnyArray, "b k"]


def without_source(
  rows: Int[AnyArray, "b n"],
  is_source: Bool[AnyArray, "b n"],
  *,
  num_kept: int,
) -> Int[AnyArray, "b {num_kept}"]:
  """Returns each query's first blocks that are not the one it came from.

  Retrieval of the source would be trivial, since it contains the masked words
  (section 3.4). `is_source` marks it and its verbatim copies. Where these leave
  fewer than `num_kept` blocks, the null block takes the last places.
  """
  xp = rows.__array_namespace__()
  order = xp.argsort(is_source, axis=1, stable=True)[:, :num_kept]
  kept = xp.take_along_axis(rows, order, axis=1)
  dropped = xp.take_along_axis(is_source, order, axis=1)
  return xp.where(dropped, xp.asarray(NULL_ROW, dtype=rows.dtype), kept)


def with_null(rows: Int[AnyArray, "b n"]) -> Int[AnyArray, "b n+1"]:
  """Adds the null block in front, where it is always candidate 0."""
  xp = rows.__array_namespace__()
  return xp.pad(rows, ((0, 0), (1, 0)), constant_values=NULL_ROW)


class EncoderRows(NamedTuple):
  """The inputs of the encoders; a stage leaves out those that it has not.

  Encoder inputs are `TokenRows` until they are laid out, and then `Sequences`:
  rows that each hold one sequence (padded) or several (packed).

  Attributes:
    queries: Inputs of the query tower.
    posterior: Inputs of the posterior's query tower.
    blocks: Inputs of the block tower.
    block_index: Number of each candidate among the blocks of its device, for
      g devices that divide the batch.
    joint: Joint inputs of the reader, ordered by query, then candidate.
    body_start: Position of a block's body in its joint input.
    body_length: Number of body tokens in the joint input.
  """

  queries: TokenRows | Sequences | None = None
  posterior: TokenRows | Sequences | None = None
  blocks: TokenRows | Sequences | None = None
  block_index: Int[Array, "g n"] | None = None
  joint: TokenRows | Sequences | None = None
  body_start: Int[AnyArray, "b k"] | None = None
  body_length: Int[AnyArray, "b k"] | None = None


def joint_rows(
  reader: Reader,
  query: Int[AnyArray, "b q"],
  candidates: Int[AnyArray, "b k l"],
  numbers: UInt32[Array, " b"],
) -> EncoderRows:
  """Returns what the reader reads, ordered by query."""
  joint = reader.join(query, candidates)
  *shape, length = joint.token_ids.shape
  candidate = jnp.arange(shape[1], dtype=jnp.uint32)[None, :]
  places = numbers[:, None] * shape[1] + candidate
  return EncoderRows(
    joint=TokenRows(joint.token_ids.reshape(-1, length), places.reshape(-1)),
    body_start=joint.body_start,
    body_length=joint.body_length,
  )


def distinct_blocks(
  retriever: Retriever, candidates: Candidates
) -> tuple[TokenRows, Int[Array, "1 n"]]:
  """Returns what the block tower reads, each distinct block once.

  Several queries may have the same candidate, above all the null block. Blocks
  with the same number are compared in full: where two that differ share a
  number, which happens once in billions, a copy may remain.

  Returns:
    The distinct blocks, padded with empty sequences to the number of
    candidates, and the place of each candidate among them.
  """
  length = candidates.tokens.shape[-1]
  tokens = jnp.asarray(candidates.tokens).reshape(-1, length)
  numbers = jnp.asarray(candidates.numbers).reshape(-1)
  size = len(tokens)
  first = jnp.argmax(numbers[:, None] == numbers[None, :], axis=1)
  is_same = (tokens == tokens[first]).all(axis=1)
  first = jnp.where(is_same, first, jnp.arange(size))
  rank = jnp.cumsum(first == jnp.arange(size)) - 1
  # They are dealt out, so that no group of rows has the empty sequences alone.
  groups = packing.num_groups(size)
  place = (rank % groups * (size // groups) + rank // groups)[first]
  blocks = jnp.zeros_like(tokens).at[place].set(tokens)
  is_block = blocks.any(axis=1, keepdims=True)
  # A block prefix must not turn padding into a sequence.
  inputs = jnp.asarray(retriever.block_input(blocks)) * is_block
  rows = TokenRows(inputs, jnp.zeros_like(numbers).at[place].set(numbers))
  return rows, place[None]


def hash_words(
  hashes: Int[np.ndarray, " n"],
) -> UInt32[np.ndarray, "n 2"]:
  """Splits hashes in two, for devices, which have no 64-bit integers."""
  return np.ascontiguousarray(hashes, np.int64).view(np.uint32).reshape(-1, 2)
