"""The reader's input: `[CLS] x [SEP] body [SEP]`, put together on the device.

Queries and blocks travel as they are (a block once for each candidate, without
its query), and the reader reads the query and the block's **body** only.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from realm_jax.models import bert


class JointInput(NamedTuple):
  """Tokens of query and body together, and where the body lies in them.

  A token of the body with index i has position `body_start + i`.
  """

  token_ids: Int[Array, "b k j"]
  body_start: Int[Array, "b k"]
  body_length: Int[Array, "b k"]


def join(
  query: Int[Array, "b q"],
  candidates: Int[Array, "b k l"],
  *,
  joint_length: int,
  separator_id: int,
) -> JointInput:
  """Joins each query with the body of each of its candidates.

  Args:
    query: `[CLS] x [SEP]`, padded.
    candidates: `[CLS] title [SEP] body [SEP]`, padded.
    joint_length: the length of the result; a body that does not fit loses
      its end, and [SEP] follows what is left, as in Google's released code.
    separator_id: the id of [SEP].

  Returns:
    The joint tokens; `body_length` counts the body's tokens that fit, without
    the last [SEP].
  """
  batch, num_candidates, block_length = candidates.shape
  query_tokens = jnp.sum(query != bert.PAD_ID, axis=-1)[:, None, None]
  block_tokens = jnp.sum(candidates != bert.PAD_ID, axis=-1)[..., None]
  title_end = jnp.argmax(candidates == separator_id, axis=-1)[..., None]
  first = title_end + 1

  position = jnp.arange(joint_length)[None, None, :]
  in_block = position - query_tokens + first
  from_block = jnp.take_along_axis(
    candidates, jnp.clip(in_block, 0, block_length - 1), axis=-1
  )
  from_block = jnp.where(position == joint_length - 1, separator_id, from_block)
  from_block = jnp.where(in_block < block_tokens, from_block, bert.PAD_ID)
  padded = jnp.pad(
    query[:, :joint_length],
    ((0, 0), (0, max(0, joint_length - query.shape[1]))),
  )
  token_ids = jnp.where(position < query_tokens, padded[:, None], from_block)

  body_length = block_tokens - first - 1
  room = jnp.maximum(joint_length - query_tokens - 1, 0)
  body_length = jnp.clip(body_length, 0, room)
  shape = (batch, num_candidates)
  return JointInput(
    token_ids=token_ids,
    body_start=jnp.broadcast_to(query_tokens[..., 0], shape),
    body_length=body_length[..., 0],
  )
