"""What attention takes, however it is computed."""

import dataclasses
from typing import NamedTuple

from jaxtyping import Array, Float, Int, UInt32

from realm_jax.models.arrays import AnyArray

# Logical axes of queries, keys, values and of the result.
AXES = ("activation_batch", "activation_heads")


class AttentionInputs(NamedTuple):
  """Arrays of one layer's attention, with n = r · l tokens in r rows.

  Only the first q tokens of each row may attend, m = r · q of all.

  Attributes:
    query: Queries of the tokens that attend, with the heads side by side.
    key, value: Keys and values of all tokens, laid out alike.
    biases: Biases of queries, keys and values, which are not yet added.
    sequence: Number of the sequence to which a token belongs and attends.
    tokens: Hash of each token that attends, for dropout.
    position: Position of each token in its sequence.
  """

  query: Float[Array, "m d"]
  key: Float[Array, "n d"]
  value: Float[Array, "n d"]
  biases: Float[Array, "3 d"]
  sequence: Int[AnyArray, "r l"]
  tokens: UInt32[Array, "r q"]
  position: Int[AnyArray, "r l"]


@dataclasses.dataclass(frozen=True)
class Settings:
  """What attention is compiled for.

  Attributes:
    head_size: Size of a head.
    max_positions: Number of positions of the model; column numbers of dropout
      are `head · max_positions + position`.
    mask_value: Score added where a key belongs to another sequence.
    dropout_rate: Share of weights to drop; 0 when not training.
  """

  head_size: int
  max_positions: int
  mask_value: float
  dropout_rate: float
