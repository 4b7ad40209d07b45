"""Candidates, and the inputs of the encoders, packed in bins.

The step makes the inputs from padded arrays, separately for the examples of
each device and each micro-batch.

Sequences have different lengths. Packed, several share a bin, so that a step
computes on hardly any padding. Shapes are static, so the step is compiled for a
few bin counts; the last one gives each sequence its own bin. At run time
`lax.switch` chooses the smallest count that fits on every device.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int, PyTree, UInt32

from realm_jax.models import AnyArray, packing
from realm_jax.models.components import Retriever
from realm_jax.models.packing import (
  TokenSequences,
  map_sequences,
  padded_inputs,
  token_sequences,
)
from realm_jax.models.sequences import Sequences
from realm_jax.partitioning.mesh import BATCH_AXES

B = TypeVar("B")
T = TypeVar("T")

# Number of bins in each of a device's groups (`packing.num_groups`), for each
# encoder input, in the order of the fields of `EncoderInputs`.
BinCounts = tuple[int, ...]


class Candidates(NamedTuple):
  """The candidate blocks of each query; the null block, if any, is the first.

  Attributes:
    tokens: Padded tokens, `[CLS] title [SEP] body [SEP]`.
    dropout_ids: Id of each block; its dropout masks are a function of it.
    passages: Padded passages, for a stage whose reader reads passages
      (`reader_texts.passage_ids`).
  """

  tokens: Int[AnyArray, "b k l"]
  dropout_ids: UInt32[AnyArray, "b k"]
  passages: Int[AnyArray, "b k m"] | None = None

  @classmethod
  def of(
    cls,
    tokens: Int[np.ndarray, "b k l"],
    passages: Int[np.ndarray, "b k m"] | None = None,
  ) -> "Candidates":
    """Returns candidates with dropout ids that are hashes of their tokens."""
    return cls(tokens, packing.content_ids(tokens), passages)


class EncoderInputs(NamedTuple):
  """Inputs of the encoders; a stage fills only the fields that it needs.

  Token sequences are `TokenSequences` until they are laid out, and then
  `Sequences`: bins that each hold one sequence (padded) or several (packed).

  Attributes:
    queries: Inputs of the query tower.
    blocks: Inputs of the block tower.
    block_index: Index of each candidate among the blocks of its device, for g
      devices that divide the batch.
    reader: Inputs of the reader: a tree of token sequences and arrays that its
      `join` makes from queries and candidates.
    hop_queries: Inputs of the query tower for the second search.
  """

  queries: TokenSequences | Sequences | None = None
  blocks: TokenSequences | Sequences | None = None
  block_index: Int[Array, "g n"] | None = None
  reader: PyTree = None
  hop_queries: TokenSequences | Sequences | None = None


def distinct_blocks(
  retriever: Retriever, candidates: Candidates
) -> tuple[TokenSequences, Int[Array, "1 n"]]:
  """Returns the inputs of the block tower, each distinct block once.

  Several queries may have the same candidate, above all the null block. Blocks
  with the same dropout id are compared in full. If two different blocks share
  an id, which happens once in billions, a copy may remain.

  Returns:
    The distinct blocks, padded with empty sequences to the number of
    candidates, and the index of each candidate among them.
  """
  length = candidates.tokens.shape[-1]
  tokens = jnp.asarray(candidates.tokens).reshape(-1, length)
  ids = jnp.asarray(candidates.dropout_ids).reshape(-1)
  size = len(tokens)
  first = jnp.argmax(ids[:, None] == ids[None, :], axis=1)
  is_same = (tokens == tokens[first]).all(axis=1)
  first = jnp.where(is_same, first, jnp.arange(size))
  rank = jnp.cumsum(first == jnp.arange(size)) - 1
  # Blocks are dealt out to the groups of bins, so that the empty sequences at
  # the end do not all fall into one group.
  groups = packing.num_groups(size)
  place = (rank % groups * (size // groups) + rank // groups)[first]
  blocks = jnp.zeros_like(tokens).at[place].set(tokens)
  is_block = blocks.any(axis=1, keepdims=True)
  # A block prefix must not turn padding into a sequence.
  inputs = jnp.asarray(retriever.block_input(blocks)) * is_block
  blocks = TokenSequences(inputs, jnp.zeros_like(ids).at[place].set(ids))
  return blocks, place[None]


def retriever_inputs(
  retriever: Retriever, query: Int[AnyArray, "b q"], candidates: Candidates
) -> EncoderInputs:
  """Returns the inputs of both towers, each distinct block once."""
  blocks, index = distinct_blocks(retriever, candidates)
  queries = TokenSequences(retriever.query_input(query))
  return EncoderInputs(queries, blocks, index)


def to_words(
  numbers: Int[np.ndarray, "*s"],
) -> UInt32[np.ndarray, "*s 2"]:
  """Splits 64-bit integers in two, as devices have only 32-bit ones."""
  words = np.ascontiguousarray(numbers, np.int64).view(np.uint32)
  return words.reshape(*numbers.shape, 2)


@dataclasses.dataclass(frozen=True)
class PackingLayout:
  """Lays out encoder inputs in bins, separately on every device.

  Attributes:
    mesh: Mesh of all devices.
    bin_counts: Bin counts for packed sequences, smallest first. Without any,
      each sequence has its own bin.
  """

  mesh: Mesh
  bin_counts: tuple[BinCounts, ...] = ()

  @property
  def num_devices(self) -> int:
    """Number of devices that divide the batch."""
    return math.prod(self.mesh.shape[axis] for axis in BATCH_AXES)

  def with_inputs(
    self,
    inputs_of: Callable[[B], EncoderInputs],
    batch: B,
    compute: Callable[[EncoderInputs], T],
    *,
    example_ids: UInt32[Array, " b"] | None = None,
  ) -> T:
    """Applies a function to the encoder inputs of a batch, laid out in bins.

    `compute` is traced once for each bin count. Take gradients inside of it:
    differentiating this method would store the residuals of all branches.

    Dropout masks are a function of `example_ids`, by default 0, 1, …. Pass them
    for a part of a batch, so that it gets the same masks as in the whole batch.
    """
    if example_ids is None:
      size = len(jax.tree.leaves(batch)[0])
      example_ids = jnp.arange(size, dtype=jnp.uint32)
    by_device, everywhere = PartitionSpec(BATCH_AXES), PartitionSpec()
    on_each_device = functools.partial(
      jax.shard_map, mesh=self.mesh, in_specs=by_device, check_vma=False
    )
    if not self.bin_counts:
      padded = on_each_device(
        lambda part, ids: padded_inputs(_with_ids(inputs_of(part), ids)),
        out_specs=by_device,
      )
      return compute(padded(batch, example_ids))

    def laid_out(
      part: B, ids: UInt32[Array, " b"]
    ) -> tuple[list[EncoderInputs], Any]:
      inputs = _with_ids(inputs_of(part), ids)
      plans = [
        _plan(sequences, num_bins=max(numbers))
        for sequences, numbers in zip(
          token_sequences(inputs),
          zip(*self.bin_counts, strict=True),
          strict=True,
        )
      ]
      needed = jnp.stack([plan.needed_bins.max() for plan in plans])
      too_few = (needed[None, :] > jnp.array(self.bin_counts)).any(axis=1)
      layouts = [
        map_sequences(
          lambda number, sequences, counts=counts: packing.lay_out(
            plans[number], sequences, num_bins=counts[number]
          ),
          inputs,
        )
        for counts in self.bin_counts
      ]
      layouts.append(padded_inputs(inputs))
      return layouts, lax.pmax(jnp.sum(too_few), BATCH_AXES)

    # The inputs of all branches are computed outside of them. Inside a branch,
    # XLA would recompute them for each layer that uses them.
    layouts, smallest = on_each_device(
      laid_out, out_specs=(by_device, everywhere)
    )(batch, example_ids)
    branches = [
      lambda layouts, number=number: compute(layouts[number])
      for number in range(len(layouts))
    ]
    return lax.switch(smallest, branches, layouts)


def needed_bins(inputs: EncoderInputs) -> Int[Array, " e"]:
  """Returns the number of bins of the fullest group, for each encoder input."""
  plans = [_plan(sequences) for sequences in token_sequences(inputs)]
  return jnp.stack([plan.needed_bins.max() for plan in plans])


def _plan(
  tokens: TokenSequences, *, num_bins: int | None = None
) -> packing.PackingPlan:
  """Plans the bins of each group, by default one for each sequence."""
  count, length = tokens.token_ids.shape
  lengths = packing.lengths_of(tokens, groups=packing.num_groups(count))
  return packing.plan_bins(
    lengths, bin_length=length, num_bins=num_bins or lengths.shape[1]
  )


def _with_ids(inputs: EncoderInputs, ids: UInt32[Array, " b"]) -> EncoderInputs:
  return map_sequences(
    lambda _, sequences: sequences.with_example_ids(ids), inputs
  )
