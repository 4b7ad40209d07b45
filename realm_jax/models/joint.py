"""Inputs of the towers and of the reader, made of queries and blocks.

The functions take numpy's arrays and jax's alike: on the host where sequences
are then packed, inside a compiled program where they stay padded. Queries are
`[CLS] x [SEP]` and blocks `[CLS] title [SEP] body [SEP]`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Int

from realm_jax.models import AnyArray
from realm_jax.models.sequences import PAD_ID


class JointInput(NamedTuple):
  """Query and body as one sequence, and where the body lies in it."""

  token_ids: Int[AnyArray, "b k j"]
  body_start: Int[AnyArray, "b k"]
  body_length: Int[AnyArray, "b k"]


def join(
  query: Int[AnyArray, "b q"],
  candidates: Int[AnyArray, "b k l"],
  *,
  joint_length: int,
  separator_id: int,
) -> JointInput:
  """Returns `[CLS] x [SEP] body [SEP]` of each query with each candidate.

  The reader reads the block's **body** only (as released).

  A body that does not fit in `joint_length` loses its end, and [SEP] follows
  what is left, as in Google's released code. `body_length` counts the tokens
  that fit, without the last [SEP].
  """
  xp = query.__array_namespace__()
  batch, num_candidates, block_length = candidates.shape
  query_tokens = xp.sum(query != PAD_ID, axis=-1)[:, None, None]
  block_tokens = xp.sum(candidates != PAD_ID, axis=-1)[..., None]
  title_end = xp.argmax(candidates == separator_id, axis=-1)[..., None]
  first = title_end + 1

  position = xp.arange(joint_length)[None, None, :]
  in_block = position - query_tokens + first
  from_block = xp.take_along_axis(
    candidates, xp.clip(in_block, 0, block_length - 1), axis=-1
  )
  from_block = xp.where(position == joint_length - 1, separator_id, from_block)
  from_block = xp.where(in_block < block_tokens, from_block, PAD_ID)
  padded = xp.pad(
    query[:, :joint_length],
    ((0, 0), (0, max(0, joint_length - query.shape[1]))),
  )
  token_ids = xp.where(position < query_tokens, padded[:, None], from_block)

  body_length = block_tokens - first - 1
  max_body_length = xp.maximum(joint_length - query_tokens - 1, 0)
  body_length = xp.clip(body_length, 0, max_body_length)
  shape = (batch, num_candidates)
  return JointInput(
    token_ids=token_ids,
    body_start=xp.broadcast_to(query_tokens[..., 0], shape),
    body_length=body_length[..., 0],
  )


def with_prefix(
  token_ids: Int[AnyArray, "n l"], prefix: Sequence[int]
) -> Int[AnyArray, "n l+{len(prefix)}"]:
  """Inserts tokens after [CLS], such as E5's "query:"."""
  if not prefix:
    return token_ids
  xp = token_ids.__array_namespace__()
  inserted = xp.asarray(prefix, dtype=token_ids.dtype)[None, :]
  inserted = xp.broadcast_to(inserted, (len(token_ids), len(prefix)))
  return xp.concatenate([token_ids[:, :1], inserted, token_ids[:, 1:]], axis=1)


def without_title_separator(
  token_ids: Int[AnyArray, "n l"], separator_id: int
) -> Int[AnyArray, "n l"]:
  """Returns `[CLS] title body [SEP]`: title and body as one text."""
  xp = token_ids.__array_namespace__()
  separator = xp.argmax(token_ids == separator_id, axis=-1)[:, None]
  length = token_ids.shape[-1]
  index = xp.arange(length)[None, :]
  index = index + (index >= separator)
  moved = xp.take_along_axis(token_ids, xp.clip(index, 0, length - 1), axis=-1)
  return xp.where(index < length, moved, PAD_ID)
