"""Packing of sequences into bins, inside a compiled program.

The number of bins is static, so a plan may need more bins than there are; the
caller then uses a larger number.
"""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, PyTree, UInt32

from realm_jax.models import AnyArray, sequences
from realm_jax.models.sequences import NO_SEQUENCE, PAD_ID, Sequences

Inputs = TypeVar("Inputs")

# Maximum number of sequences in a group. Packing is sequential within a group,
# so groups should be small; much smaller groups would pack less tightly, and
# larger ones hardly any better.
_MAX_GROUP = 128
_MIN_GROUP = 32


class TokenSequences(NamedTuple):
  """Padded sequences before they are packed, and their ids for dropout.

  Without ids, `with_example_ids` derives them from the examples.
  """

  token_ids: Int[AnyArray, "n l"]
  dropout_ids: UInt32[AnyArray, " n"] | None = None

  def with_example_ids(self, ids: UInt32[Array, " b"]) -> "TokenSequences":
    """Returns the sequences with ids, if they have none.

    The sequences are ordered by example, k for each. An id depends on the
    example's id and the index within the example, so dropout masks are the same
    in whichever part of a batch the example is.
    """
    if self.dropout_ids is not None:
      return self
    count = len(self.token_ids) // len(ids)
    place = jnp.arange(count, dtype=jnp.uint32)[None, :]
    return self._replace(dropout_ids=(ids[:, None] * count + place).reshape(-1))


def token_sequences(inputs: PyTree) -> list[TokenSequences]:
  """Returns the token sequences in a tree, in their order."""
  leaves = jax.tree.leaves(inputs, is_leaf=_is_sequences)
  return [leaf for leaf in leaves if _is_sequences(leaf)]


def map_sequences(
  function: Callable[[int, TokenSequences], TokenSequences | Sequences],
  inputs: Inputs,
) -> Inputs:
  """Applies a function to the numbered token sequences in a tree."""
  results = iter([function(*one) for one in enumerate(token_sequences(inputs))])
  return jax.tree.map(
    lambda leaf: next(results) if _is_sequences(leaf) else leaf,
    inputs,
    is_leaf=_is_sequences,
  )


def padded_inputs(inputs: Inputs) -> Inputs:
  """Returns a tree in which each sequence has its own bin."""
  return map_sequences(lambda _, one: sequences.padded(*one), inputs)


def _is_sequences(leaf: Any) -> bool:
  return isinstance(leaf, TokenSequences)


def content_ids(
  token_ids: Int[np.ndarray, "*n l"],
) -> UInt32[np.ndarray, "*n"]:
  """Returns dropout ids that are hashes of the sequences' tokens.

  Equal sequences get the same id, and thus the same dropout masks.
  """
  *shape, length = token_ids.shape
  rows = np.ascontiguousarray(token_ids, np.int32).reshape(-1, length)
  ids = [zlib.crc32(row.data) for row in rows]
  return np.array(ids, np.uint32).reshape(shape)


def num_groups(num_sequences: int) -> int:
  """Returns the number of equal groups of a device's sequences."""
  least = -(-num_sequences // _MAX_GROUP)
  numbers = range(least, num_sequences + 1)
  fewest = next(number for number in numbers if num_sequences % number == 0)
  return fewest if num_sequences >= fewest * _MIN_GROUP else 1


class PackingPlan(NamedTuple):
  """Assignment of n = s · m sequences to bins, in s groups.

  Attributes:
    lengths: Number of tokens of each sequence.
    starts: Index of its first token in its group's flattened bins.
    needed_bins: Number of bins that each group needs. If there are not enough
      bins, this is a lower bound, which exceeds the number of bins.
  """

  lengths: Int[Array, "s m"]
  starts: Int[Array, "s m"]
  needed_bins: Int[Array, " s"]


def lengths_of(
  tokens: TokenSequences, *, groups: int
) -> Int[Array, "{groups} m"]:
  """Returns the number of tokens of each sequence, by group."""
  lengths = jnp.sum(jnp.asarray(tokens.token_ids) != PAD_ID, axis=1)
  return lengths.reshape(groups, -1)


def plan_bins(
  lengths: Int[Array, "s m"], *, bin_length: int, num_bins: int
) -> PackingPlan:
  """Packs each group by best fit, the longest sequences first."""
  size, bins = lengths.shape[1], jnp.arange(num_bins)

  def best_fit(
    lengths: Int[Array, " m"],
  ) -> tuple[Int[Array, " m"], Int[Array, ""]]:
    """Returns the start of each sequence, and the number of bins."""
    order = jnp.argsort(-lengths, stable=True)

    def place(turn: Int[Array, ""], filled: Any) -> Any:
      starts, space, last_turn, used = filled
      index = order[turn]
      length = lengths[index]
      # The smallest sufficient space; among equal ones, the bin filled last.
      preference = space * (size + 1) - last_turn
      fits = (bins < used) & (space >= length)
      is_open = fits.any()
      preference = jnp.where(fits, preference, (bin_length + 1) * (size + 1))
      bin_ = jnp.where(is_open, jnp.argmin(preference), used)
      offset = jnp.where(is_open, bin_length - space[bin_], 0)
      # Bins beyond the last are dropped.
      return (
        starts.at[index].set(bin_ * bin_length + offset),
        space.at[bin_].add(-length, mode="drop"),
        last_turn.at[bin_].set(turn, mode="drop"),
        used + jnp.where(is_open, 0, 1),
      )

    # The starts, the space left in each bin, the turn in which each bin was
    # last filled, and the number of bins in use, even if that exceeds num_bins.
    empty = (
      jnp.zeros(size, jnp.int32),
      jnp.full(num_bins, bin_length, jnp.int32),
      jnp.zeros(num_bins, jnp.int32),
      jnp.zeros((), jnp.int32),
    )
    starts, _, _, used = lax.fori_loop(0, size, place, empty)
    return starts, jnp.maximum(used, 1)

  return PackingPlan(lengths, *jax.vmap(best_fit)(lengths))


def lay_out(
  plan: PackingPlan, sequences: TokenSequences, *, num_bins: int
) -> Sequences:
  """Lays out sequences with ids in the bins that a plan assigns.

  `num_bins` is the number of bins of each group, at least the needed number.
  """
  assert sequences.dropout_ids is not None
  groups, size = plan.lengths.shape
  bin_length = sequences.token_ids.shape[-1]
  num_places = num_bins * bin_length
  place = jnp.arange(num_places)

  def of_group(
    lengths: Int[Array, " m"],
    starts: Int[Array, " m"],
    token_ids: Int[Array, "m l"],
  ) -> tuple[Int[Array, " t"], Int[Array, " t"], Int[Array, " t"]]:
    """Returns the flattened tokens, their sequences and positions."""
    # An empty sequence shares its start with another sequence.
    marked = jnp.where(lengths > 0, starts, num_places)
    owner = jnp.zeros(num_places, jnp.int32)
    owner = owner.at[marked].set(jnp.arange(size), mode="drop")
    is_start = jnp.zeros(num_places, bool).at[marked].set(True, mode="drop")
    start = lax.cummax(jnp.where(is_start, place, 0))
    owner, position = owner[start], place - start
    is_token = position < lengths[owner]
    position = jnp.where(is_token, position, 0)
    return (
      jnp.where(is_token, token_ids[owner, position], PAD_ID),
      jnp.where(is_token, owner, NO_SEQUENCE),
      position,
    )

  tokens = jnp.asarray(sequences.token_ids).reshape(groups, size, bin_length)
  laid_out = jax.vmap(of_group)(plan.lengths, plan.starts, tokens)
  return Sequences(
    *(part.reshape(groups * num_bins, bin_length) for part in laid_out),
    starts=plan.starts,
    dropout_ids=sequences.dropout_ids.reshape(groups, size),
  )
