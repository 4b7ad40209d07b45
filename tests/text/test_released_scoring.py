"""Google's released scoring, on every row of the real question files."""

import numpy as np
import pytest

from realm_jax.text import answers
from tests.golden import make_orqa_scores, scored_rows


@pytest.fixture(scope="module")
def released():
  """What it says: `tests/golden/make_orqa_scores.py`."""
  with np.load(make_orqa_scores.OUTPUT) as arrays:
    yield arrays


@pytest.mark.parametrize("name", scored_rows.FILES)
def test_our_scoring_agrees_on_every_row(name, released, shared_data):
  rows = scored_rows.read(shared_data, name)
  digests = [
    make_orqa_scores.digest(list(map(answers.normalize_answer, row.answers)))
    for row in rows
  ]
  np.testing.assert_array_equal(digests, released[f"{name} digests"])
  correct = [
    [
      answers.is_correct(
        text, row.answers, kind="regex" if row.is_regex else "string"
      )
      for text in texts
    ]
    for row, texts in zip(rows, scored_rows.predictions(rows), strict=True)
  ]
  expected = np.unpackbits(released[f"{name} correct"], axis=1)
  np.testing.assert_array_equal(correct, expected[:, : len(correct[0])])
