"""The reader's input, against lists joined in a loop."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_jax.models.sequences import join

PAD, CLS, SEP = 0, 2, 3
QUERY_LENGTH, BLOCK_LENGTH = 7, 12


def _padded(row, length):
  return np.array(row + [PAD] * (length - len(row)), np.int32)


@st.composite
def _pairs(draw):
  """A query with three blocks."""
  words = st.integers(5, 60)
  titles = st.lists(words, max_size=3)
  bodies = st.lists(words, max_size=BLOCK_LENGTH - 6)
  query = [CLS, *draw(st.lists(words, max_size=QUERY_LENGTH - 2)), SEP]
  blocks = [[CLS, *draw(titles), SEP, *draw(bodies), SEP] for _ in range(3)]
  return query, blocks


@given(_pairs(), st.sampled_from([8, 13, 20]))
@settings(max_examples=30)
def test_equals_lists_joined_in_a_loop(pairs, joint_length):
  query, blocks = pairs
  joined = join(
    _padded(query, QUERY_LENGTH)[None],
    np.stack([_padded(block, BLOCK_LENGTH) for block in blocks])[None],
    joint_length=joint_length,
    separator_id=SEP,
  )
  for k, block in enumerate(blocks):
    body = block[block.index(SEP) + 1 : -1]
    length = min(len(body), max(0, joint_length - len(query) - 1))
    joint = (query + body[:length] + [SEP])[:joint_length]
    expected = _padded(joint, joint_length)
    np.testing.assert_array_equal(joined.token_ids[0, k], expected)
    assert joined.body_start[0, k] == len(query)
    assert joined.body_length[0, k] == length
