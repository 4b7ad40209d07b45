"""Token sequences as the encoder takes them: rows that hold one or several.

Where every row holds one sequence, shorter ones are padded, and the padding
is computed on as if it were text. Packed, a row holds as many as fit, each
attends only to itself, and hardly any padding is left.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

PAD_ID = 0
NO_SEQUENCE = -1
# Odd and large, so that no small difference of two sequences' numbers is a
# multiple of it by a small difference of two positions.
_POSITION_FACTOR = 0x9E3779B1


class Sequences(NamedTuple):
  """n = s · m sequences in r rows, in s equal groups (one for each device).

  The arrays are jax's, or numpy's while they are on the host. A group's
  sequences lie in the group's own rows, so that nothing that is gathered
  crosses devices.

  Attributes:
    token_ids: the tokens.
    sequence: which of its group's sequences a token belongs to, or −1.
    position: a token's place in its sequence, from 0.
    starts: where each sequence begins in its group's rows, flattened.
    numbers: of the sequences, by which dropout knows them wherever they lie.
  """

  token_ids: Int[Any, "r l"]
  sequence: Int[Any, "r l"]
  position: Int[Any, "r l"]
  starts: Int[Any, "s m"]
  numbers: UInt32[Any, "s m"]

  @property
  def dropout_keys(self) -> UInt32[Array, "r l"]:
    """A number for each token, wherever it lies."""
    groups, size = self.numbers.shape
    sequence = self.sequence.reshape(groups, -1)
    number = jnp.take_along_axis(
      self.numbers, jnp.clip(sequence, 0, size - 1), axis=1
    )
    position = self.position.astype(jnp.uint32) * jnp.uint32(_POSITION_FACTOR)
    return number.reshape(self.sequence.shape) + position


def padded(token_ids: Int[Array, "*b l"]) -> Sequences:
  """One sequence a row, as many as there are rows."""
  length = token_ids.shape[-1]
  token_ids = token_ids.reshape(-1, length)
  is_token = token_ids != PAD_ID
  return Sequences(
    token_ids=token_ids,
    sequence=jnp.where(is_token, 0, NO_SEQUENCE),
    position=jnp.broadcast_to(jnp.arange(length), token_ids.shape),
    starts=jnp.zeros((token_ids.shape[0], 1), jnp.int32),
    numbers=jnp.arange(token_ids.shape[0], dtype=jnp.uint32)[:, None],
  )


def gather(
  sequences: Sequences,
  hidden: Float[Array, "r l d"],
  offsets: Int[Array, "n o"],
) -> Float[Array, "n o d"]:
  """Hidden states of each sequence at some of its positions."""
  groups, size = sequences.starts.shape
  dim = hidden.shape[-1]
  flat = hidden.reshape(groups, -1, dim)
  places = sequences.starts[..., None] + offsets.reshape(groups, size, -1)
  places = jnp.minimum(places, flat.shape[1] - 1).reshape(groups, -1)
  found = jnp.take_along_axis(flat, places[..., None], axis=1)
  return found.reshape(groups * size, -1, dim)


def mean(
  sequences: Sequences, hidden: Float[Array, "r l d"]
) -> Float[Array, "n d"]:
  """The mean hidden state of each sequence's tokens."""
  groups, size = sequences.starts.shape
  dim = hidden.shape[-1]
  of = sequences.sequence.reshape(groups, 1, -1)
  belongs = (of == jnp.arange(size)[None, :, None]).astype(hidden.dtype)
  total = jnp.einsum("smt,std->smd", belongs, hidden.reshape(groups, -1, dim))
  count = jnp.maximum(belongs.sum(axis=-1, keepdims=True), 1)
  return (total / count).reshape(groups * size, dim)
