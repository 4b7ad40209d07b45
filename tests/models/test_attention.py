"""What is added to the scores of padding: Google's −10,000, or the least float.

The two tell apart only where a score of padding is above the others by more
than 10,000.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.models.attention import attend
from realm_jax.models.bert import BertConfig

LEAST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize(
  ("mask_value", "score_of_padding", "attends_to_padding"),
  [
    (BertConfig.attention_mask_value, 20_000.0, True),
    (BertConfig.attention_mask_value, 9_000.0, False),
    (LEAST, 20_000.0, False),
    (LEAST, 9_000.0, False),
  ],
)
def test_padding_that_scores_highest(
  mask_value, score_of_padding, attends_to_padding
):
  # Two tokens and padding, in one head of one dimension.
  context = attend(
    jnp.full((3, 1), 100.0),
    jnp.array([[0.0], [0.0], [score_of_padding / 100]]),
    jnp.array([[1.0], [3.0], [7.0]]),
    sequence=jnp.array([[0, 0, -1]]),
    position=jnp.array([[0, 1, 0]]),
    tokens=jnp.zeros((1, 3), jnp.uint32),
    num_heads=1,
    max_positions=3,
    mask_value=mask_value,
  )
  expected = 7.0 if attends_to_padding else 2.0
  np.testing.assert_allclose(context[:2, 0], expected)
