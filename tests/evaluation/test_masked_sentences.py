"""Sentences with [MASK]: how they are read, and what fills them in."""

import numpy as np
import pytest

from realm_jax.evaluation.masked_sentences import (
  ExplanationError,
  masked_query,
)


@pytest.fixture(scope="module")
def words(world):
  return world.corpus.vocabulary


@pytest.fixture(scope="module")
def read(words):
  """`read(text, answer)` returns the masked query, and what is read of it."""

  def call(text, answer=None):
    masked = masked_query(text, answer, words, query_length=16, max_masks=4)
    own = masked.query[1 : masked.num_read + 1]
    return masked, [words.pieces[i] for i in own]

  return call


def test_one_place_takes_an_answer_of_several_wordpieces(read, words):
  masked, pieces = read("Later [MASK] built the bridge.", "Gül Stone")
  assert pieces == "later [MASK] [MASK] built the bridge .".split()
  assert masked.filling_text(words, masked.target_ids) == "gul stone"
  query = [words.pieces[i] for i in masked.query[:9]]
  assert query == ["[CLS]", *pieces, "[SEP]"]
  assert not masked.query[9:].any()
  assert masked.positions.tolist() == [2, 3, 0, 0]
  # Masks beside each other are one place, whose number the answer sets.
  again, _ = read("Later [MASK] [MASK][MASK] built the bridge.", "Gül Stone")
  np.testing.assert_array_equal(again.query, masked.query)


@pytest.mark.parametrize(
  ("before", "after", "read_before", "read_after"),
  [(20, 20, 6, 7), (2, 40, 2, 11), (40, 2, 11, 2), (5, 8, 5, 8)],
)
def test_a_long_sentence_is_cut_around_its_mask(
  read, before, after, read_before, read_after
):
  masked, pieces = read(f"{'born ' * before}[MASK]{' bridge' * after}")
  assert pieces == ["born"] * read_before + ["[MASK]"] + (
    ["bridge"] * read_after
  )
  assert len(masked.token_ids) == before + 1 + after
  assert masked.positions[0] == read_before + 1


@pytest.mark.parametrize(
  ("text", "answer", "said"),
  [
    ("[MASK] was born in [MASK]", "Velt", "2 separate places"),
    ("[MASK]" + " born" * 20 + "[MASK]", None, "22 wordpieces apart"),
  ],
)
def test_what_does_not_fit_is_refused(read, text, answer, said):
  with pytest.raises(ExplanationError, match=said):
    read(text, answer)
