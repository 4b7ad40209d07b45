"""Token sequences: inputs of towers and readers, one or several in a bin.

With one sequence in a bin, shorter sequences are padded, and the encoder also
computes on the padding. Packing puts several sequences into a bin until it is
full. Each sequence only attends to itself, and hardly any padding is left.

Queries are `[CLS] x [SEP]`, and blocks `[CLS] title [SEP] body [SEP]`. The
functions accept arrays of NumPy, on the host, and of jax, in compiled programs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from realm_jax.models import AnyArray

PAD_ID = 0
NO_SEQUENCE = -1
# Odd and large, so that tokens of sequences with similar ids never get the same
# key at different positions.
_POSITION_FACTOR = 0x9E3779B1


class Sequences(NamedTuple):
  """n = s · m sequences in r bins, in s equal groups (one for each device).

  On the host, arrays are NumPy's. A group's sequences are in the group's own
  bins, so that no gather crosses devices.

  Attributes:
    sequence: Index of a token's sequence in its group, or −1 for padding.
    position: Position of a token in its sequence, from 0.
    starts: Index of each sequence's first token in its group's flattened bins.
    dropout_ids: Id of each sequence; its dropout masks depend on it.
  """

  token_ids: Int[AnyArray, "r l"]
  sequence: Int[AnyArray, "r l"]
  position: Int[AnyArray, "r l"]
  starts: Int[AnyArray, "s m"]
  dropout_ids: UInt32[AnyArray, "s m"]

  @property
  def dropout_keys(self) -> UInt32[Array, "r l"]:
    """A key for each token that does not depend on the layout in bins."""
    groups, size = self.dropout_ids.shape
    sequence = self.sequence.reshape(groups, -1)
    ids = jnp.take_along_axis(
      self.dropout_ids, jnp.clip(sequence, 0, size - 1), axis=1
    )
    return dropout_keys(ids.reshape(self.sequence.shape), self.position)


def dropout_keys(
  ids: UInt32[AnyArray, "*#s"], position: Int[AnyArray, "*#s"]
) -> UInt32[Array, "*s"]:
  """Returns keys of tokens, from sequences' ids and tokens' positions."""
  return ids + position.astype(jnp.uint32) * jnp.uint32(_POSITION_FACTOR)


class PaddedSequences(Sequences):
  """Sequences that each have their own bin, in the order of the bins.

  With this type, a tower computes only the pooled tokens in its last layer.
  """

  __slots__ = ()


def padded(
  token_ids: Int[AnyArray, "*b l"],
  dropout_ids: UInt32[AnyArray, " n"] | None = None,
) -> PaddedSequences:
  """Returns sequences with one bin each.

  With `dropout_ids`, all sequences form one group. Otherwise each is its own
  group, and its id is the index of its bin.
  """
  length = token_ids.shape[-1]
  token_ids = token_ids.reshape(-1, length)
  count = len(token_ids)
  shape = (count, 1) if dropout_ids is None else (1, count)
  if dropout_ids is None:
    dropout_ids = jnp.arange(count, dtype=jnp.uint32)
  index = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)
  is_token = token_ids != PAD_ID
  return PaddedSequences(
    token_ids=token_ids,
    sequence=jnp.where(is_token, index.reshape(-1, 1), NO_SEQUENCE),
    position=jnp.broadcast_to(jnp.arange(length), token_ids.shape),
    starts=index * length,
    dropout_ids=dropout_ids.reshape(shape),
  )


def gather(
  sequences: Sequences,
  hidden: Shaped[Array, "r l d"],
  offsets: Int[AnyArray, "n o"],
) -> Shaped[Array, "n o d"]:
  """Returns hidden states of each sequence at some of its positions."""
  groups, size = sequences.starts.shape
  dim = hidden.shape[-1]
  flat = hidden.reshape(groups, -1, dim)
  index = sequences.starts[..., None] + offsets.reshape(groups, size, -1)
  index = jnp.minimum(index, flat.shape[1] - 1).reshape(groups, -1)
  states = jnp.take_along_axis(flat, index[..., None], axis=1)
  return states.reshape(groups * size, -1, dim)


def unpacked(
  sequences: Sequences, hidden: Float[Array, "r l d"]
) -> tuple[Float[Array, "n l d"], Bool[Array, "n l"]]:
  """Returns hidden states of each sequence, padded, and which are tokens."""
  if isinstance(sequences, PaddedSequences):
    return hidden, jnp.asarray(sequences.sequence != NO_SEQUENCE)
  groups, size = sequences.starts.shape
  length = hidden.shape[1]
  offsets = jnp.broadcast_to(jnp.arange(length), (groups * size, length))
  owners = jnp.tile(jnp.arange(size), groups)[:, None]
  # Beyond the end of a sequence are tokens of others.
  places = jnp.stack([sequences.sequence, sequences.position], axis=-1)
  actual = gather(sequences, places, offsets)
  is_token = (actual[..., 0] == owners) & (actual[..., 1] == offsets)
  return gather(sequences, hidden, offsets), is_token


def lengths(sequences: Sequences) -> Int[Array, " n"]:
  """Returns the number of tokens of each sequence."""
  groups, size = sequences.starts.shape
  owners = jnp.asarray(sequences.sequence).reshape(groups, 1, -1)
  is_own = owners == jnp.arange(size)[None, :, None]
  return is_own.sum(axis=-1).reshape(groups * size)


def mean(
  sequences: Sequences, hidden: Float[Array, "r l d"]
) -> Float[Array, "n d"]:
  """Returns the mean hidden state of each sequence's tokens."""
  if isinstance(sequences, PaddedSequences):
    is_token = jnp.asarray(sequences.sequence != NO_SEQUENCE)[..., None]
    total = jnp.where(is_token, hidden, 0).sum(axis=1)
    return total / jnp.maximum(is_token.sum(axis=1), 1)
  groups, size = sequences.starts.shape
  dim = hidden.shape[-1]
  sequence = sequences.sequence.reshape(groups, 1, -1)
  belongs = (sequence == jnp.arange(size)[None, :, None]).astype(hidden.dtype)
  total = jnp.einsum("smt,std->smd", belongs, hidden.reshape(groups, -1, dim))
  count = jnp.maximum(belongs.sum(axis=-1, keepdims=True), 1)
  return (total / count).reshape(groups * size, dim)


class JointInput(NamedTuple):
  """Query and body as one sequence, and the position of the body."""

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

  The reader reads only the block's **body**. A body that does not fit in
  `joint_length` is truncated, and [SEP] follows, both as in Google's released
  code. `body_length` does not count the last [SEP].
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


def pairs(
  query: Int[AnyArray, "b q"],
  blocks: Int[AnyArray, "b k l"],
  *,
  joint_length: int,
  separator_id: int,
) -> Int[AnyArray, "b k j"]:
  """Returns `[CLS] x [SEP] title body [SEP]` of each query with each block.

  A block that does not fit in `joint_length` is truncated.
  """
  count, length = blocks.shape[1:]
  flat = blocks.reshape(-1, length)
  whole = without_title_separator(flat, separator_id)
  # `join` drops everything up to the first [SEP], so it replaces [CLS] here.
  xp = whole.__array_namespace__()
  is_first = xp.arange(length)[None, :] == 0
  whole = xp.where(is_first, separator_id, whole)
  return join(
    query,
    whole.reshape(-1, count, length),
    joint_length=joint_length,
    separator_id=separator_id,
  ).token_ids


def joined_blocks(
  blocks: Int[AnyArray, "*b h l"], *, separator_id: int
) -> Int[AnyArray, "*b h*l"]:
  """Joins blocks to `[CLS] title [SEP] body title body … [SEP]`.

  The blocks are padded, `[CLS] title [SEP] body [SEP]`. A null block after
  another block adds nothing.
  """
  xp = blocks.__array_namespace__()
  *shape, hops, length = blocks.shape
  flat = blocks.reshape(-1, hops, length)
  column = xp.arange(length)[None, None, :]
  separator = xp.argmax(flat == separator_id, axis=-1)[..., None]
  end = xp.sum(flat != PAD_ID, axis=-1)[..., None] - 1
  # Only the first block keeps [CLS] and the [SEP] after its title.
  is_special = (column == 0) | (column == separator)
  is_first = xp.arange(hops)[None, :, None] == 0
  is_kept = ((column < end) & (is_first | ~is_special)).reshape(len(flat), -1)
  tokens = xp.where(is_kept, flat.reshape(len(flat), -1), PAD_ID)
  order = xp.argsort(~is_kept, axis=1, stable=True)
  tokens = xp.take_along_axis(tokens, order, axis=1)
  last = xp.sum(is_kept, axis=1)[:, None]
  is_last = xp.arange(hops * length)[None, :] == last
  return xp.where(is_last, separator_id, tokens).reshape(*shape, -1)


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
