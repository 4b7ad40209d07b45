"""The reader's input, against lists joined in a loop."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.models.joint import join

PAD, CLS, SEP = 0, 2, 3

QUERY_LENGTH, BLOCK_LENGTH = 7, 12
NULL = [CLS, SEP, SEP]

words = st.integers(5, 60)


def padded(rows, length):
  return np.array([row + [PAD] * (length - len(row)) for row in rows], np.int32)


def _join(queries, blocks, joint_length):
  joined = join(
    padded(queries, QUERY_LENGTH),
    np.stack([padded(row, BLOCK_LENGTH) for row in blocks]),
    joint_length=joint_length,
    separator_id=SEP,
  )
  return joined._replace(
    token_ids=np.asarray(joined.token_ids),
    body_start=np.asarray(joined.body_start),
    body_length=np.asarray(joined.body_length),
  )


def _by_hand(query, block, joint_length):
  body = block[block.index(SEP) + 1 : -1]
  length = min(len(body), max(0, joint_length - len(query) - 1))
  joint = (query + body[:length] + [SEP])[:joint_length]
  return joint + [PAD] * (joint_length - len(joint)), len(query), length


@st.composite
def _pairs(draw):
  """Two queries with three blocks each, and the length of the result."""
  query = st.lists(words, max_size=QUERY_LENGTH - 2)
  titles = st.lists(words, max_size=3)
  bodies = st.lists(words, max_size=BLOCK_LENGTH - 6)
  queries = [[CLS, *draw(query), SEP] for _ in range(2)]
  blocks = [
    [[CLS, *draw(titles), SEP, *draw(bodies), SEP] for _ in range(3)]
    for _ in range(2)
  ]
  return queries, blocks, draw(st.sampled_from([8, 13, 20]))


@given(_pairs())
@settings(max_examples=40)
def test_equals_lists_joined_in_a_loop(pairs):
  queries, blocks, joint_length = pairs
  joined = _join(queries, blocks, joint_length)
  for b, query in enumerate(queries):
    for k, block in enumerate(blocks[b]):
      tokens, start, length = _by_hand(query, block, joint_length)
      np.testing.assert_array_equal(joined.token_ids[b, k], tokens)
      assert (joined.body_start[b, k], joined.body_length[b, k]) == (
        start,
        length,
      )
