"""Sentences with [MASK]: how they are read, and what fills them in."""

import numpy as np
import pytest

from realm_jax.evaluation.masked_sentences import (
  ExplanationError,
  contains_text,
  masked_query,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def words(world):
  return world.corpus.vocabulary


@pytest.fixture(scope="module")
def read(run_with, words):
  """`read(text, answer)` returns the masked query, and what is read of it."""
  run = run_with(query_length=16, max_masks=4)

  def call(text, answer=None):
    masked = masked_query(run, text, answer)
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


@pytest.mark.parametrize(
  ("text", "is_there"),
  [
    ("bcd", True),
    ("bdc", False),
    # Too short to say where it is from.
    ("bc", False),
    # A place with masks has one or two words, wherever it is.
    ("ab_d", True),
    ("a__de", True),
    ("a_ef", False),
    ("_bcd", True),
    ("_abc", False),
    ("cde_", True),
    ("def_", False),
  ],
)
def test_what_a_block_contains_word_for_word(text, is_there):
  body, token_ids = np.array([*b"abcdef"]), [*text.encode()]
  found = contains_text(body, token_ids, mask_id=ord("_"), max_masks=2)
  assert found == is_there


def test_words_that_recur_around_many_masks_take_no_time():
  # To try all sizes of the places would take for ever.
  body, text = np.full(200, 7), [7, 5] * 20 + [8]
  assert not contains_text(body, text, mask_id=5, max_masks=10)
  assert contains_text(np.append(body, 8), text, mask_id=5, max_masks=10)
