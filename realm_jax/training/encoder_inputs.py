"""Candidates, and what the encoders of a stage read of them, packed in bins.

Inputs are made in the step, of the padded arrays of one device's examples, or
of a part of them. The functions that choose candidates take numpy's arrays and
jax's alike: on the host, and inside a compiled program.

Sequences have different lengths. Packed, several share a bin, so that a step
computes on hardly any padding. Shapes are static, so the step is compiled for a
few numbers of bins, the last of which gives each sequence its own. At run time
`lax.switch` takes the fewest that hold the sequences of every device.
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

# The number of bins in each group (`packing.num_groups`) of a device, for each
# encoder input, in the order of the fields of `EncoderInputs`.
BinCounts = tuple[int, ...]


class Candidates(NamedTuple):
  """The blocks of each query, of which the null block is the first.

  Attributes:
    tokens: Padded tokens, `[CLS] title [SEP] body [SEP]`.
    dropout_ids: Id of each block, from which dropout makes its masks.
    passages: Padded passages, for a stage whose reader reads these
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
    """Returns candidates whose dropout ids follow from their tokens."""
    return cls(tokens, packing.content_ids(tokens), passages)


class EncoderInputs(NamedTuple):
  """The inputs of the encoders; a stage leaves out those that it has not.

  Token sequences are `TokenSequences` until they are laid out, and then
  `Sequences`: bins that each hold one sequence (padded) or several (packed).

  Attributes:
    queries: Inputs of the query tower.
    blocks: Inputs of the block tower.
    block_index: Number of each candidate among the blocks of its device, for
      g devices that divide the batch.
    reader: What the reader reads: a tree of token sequences and arrays, made by
      its `join` of queries and candidates.
    hop_queries: Inputs of the tower for queries of a second search.
  """

  queries: TokenSequences | Sequences | None = None
  blocks: TokenSequences | Sequences | None = None
  block_index: Int[Array, "g n"] | None = None
  reader: PyTree = None
  hop_queries: TokenSequences | Sequences | None = None


def distinct_blocks(
  retriever: Retriever, candidates: Candidates
) -> tuple[TokenSequences, Int[Array, "1 n"]]:
  """Returns what the block tower reads, each distinct block once.

  Several queries may have the same candidate, above all the null block. Blocks
  with the same dropout id are compared in full: where two that differ share an
  id, which happens once in billions, a copy may remain.

  Returns:
    The distinct blocks, padded with empty sequences to the number of
    candidates, and the place of each candidate among them.
  """
  length = candidates.tokens.shape[-1]
  tokens = jnp.asarray(candidates.tokens).reshape(-1, length)
  ids = jnp.asarray(candidates.dropout_ids).reshape(-1)
  size = len(tokens)
  first = jnp.argmax(ids[:, None] == ids[None, :], axis=1)
  is_same = (tokens == tokens[first]).all(axis=1)
  first = jnp.where(is_same, first, jnp.arange(size))
  rank = jnp.cumsum(first == jnp.arange(size)) - 1
  # They are dealt out, so that no group of bins has the empty sequences alone.
  groups = packing.num_groups(size)
  place = (rank % groups * (size // groups) + rank // groups)[first]
  blocks = jnp.zeros_like(tokens).at[place].set(tokens)
  is_block = blocks.any(axis=1, keepdims=True)
  # A block prefix must not turn padding into a sequence.
  inputs = jnp.asarray(retriever.block_input(blocks)) * is_block
  blocks = TokenSequences(inputs, jnp.zeros_like(ids).at[place].set(ids))
  return blocks, place[None]


def to_words(
  numbers: Int[np.ndarray, "*s"],
) -> UInt32[np.ndarray, "*s 2"]:
  """Splits numbers in two, for devices, which have no 64-bit integers."""
  words = np.ascontiguousarray(numbers, np.int64).view(np.uint32)
  return words.reshape(*numbers.shape, 2)


@dataclasses.dataclass(frozen=True)
class PackingLayout:
  """Lays out encoder inputs in bins, on every device for itself.

  Attributes:
    mesh: Mesh of all devices.
    bin_counts: Numbers of bins of packed sequences, the fewest first.
      Without any, each sequence has a bin of its own.
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
    """Returns what a function computes of the encoder inputs of a batch.

    `compute` is traced once for each number of bins. Whoever wants a gradient
    takes it there: the derivative of this method itself would keep what all of
    its branches need.

    Dropout masks follow from the `example_ids`, which count the examples of a
    whole batch; a part of a batch has to be given its own.
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
        _plan(one, num_bins=max(numbers))
        for one, numbers in zip(
          token_sequences(inputs),
          zip(*self.bin_counts, strict=True),
          strict=True,
        )
      ]
      needed = jnp.stack([plan.needed_bins.max() for plan in plans])
      too_few = (needed[None, :] > jnp.array(self.bin_counts)).any(axis=1)
      layouts = [
        map_sequences(
          lambda number, one, counts=counts: packing.lay_out(
            plans[number], one, num_bins=counts[number]
          ),
          inputs,
        )
        for counts in self.bin_counts
      ]
      layouts.append(padded_inputs(inputs))
      return layouts, lax.pmax(jnp.sum(too_few), BATCH_AXES)

    # The inputs of all branches are made outside of them: computed in a branch,
    # XLA would compute them again for each of the layers that use them.
    layouts, smallest = on_each_device(
      laid_out, out_specs=(by_device, everywhere)
    )(batch, example_ids)
    branches = [
      lambda layouts, number=number: compute(layouts[number])
      for number in range(len(layouts))
    ]
    return lax.switch(smallest, branches, layouts)


def needed_bins(inputs: EncoderInputs) -> Int[Array, " e"]:
  """Returns how many bins the fullest group needs, of each encoder input."""
  plans = [_plan(one) for one in token_sequences(inputs)]
  return jnp.stack([plan.needed_bins.max() for plan in plans])


def _plan(
  tokens: TokenSequences, *, num_bins: int | None = None
) -> packing.PackingPlan:
  """Plans the bins of each group, by default as many as it has sequences."""
  count, length = tokens.token_ids.shape
  lengths = packing.lengths_of(tokens, groups=packing.num_groups(count))
  return packing.plan_bins(
    lengths, bin_length=length, num_bins=num_bins or lengths.shape[1]
  )


def _with_ids(inputs: EncoderInputs, ids: UInt32[Array, " b"]) -> EncoderInputs:
  return map_sequences(lambda _, one: one.with_example_ids(ids), inputs)
