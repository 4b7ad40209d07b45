"""Normalization of answers in other languages than English."""

import numpy as np
import pytest

from realm_jax.text import answers
from realm_jax.text.normalization import normalize_answer
from tests.golden import make_scores


@pytest.mark.parametrize("language", make_scores.HAND_WRITTEN)
def test_the_languages_of_mlqa_are_scored_as_its_script_does(
  language, shared_data
):
  texts = make_scores.answers_in(language, shared_data)
  pairs = make_scores.pairs_in(language, shared_data)
  with np.load(make_scores.MLQA) as released:
    digests = [
      make_scores.digest([normalize_answer(t, language)]) for t in texts
    ]
    np.testing.assert_array_equal(digests, released[f"{language} digests"])
    correct = [answers.exact_match(*pair, language) for pair in pairs]
    expected = np.unpackbits(released[f"{language} correct"], count=len(pairs))
    np.testing.assert_array_equal(correct, expected)
    f1 = [answers.token_f1(*pair, language) for pair in pairs]
    np.testing.assert_allclose(f1, released[f"{language} f1"], atol=1e-6)


@pytest.mark.parametrize(
  ("language", "one", "other"),
  [
    ("it", "la casa", "Casa"),
    ("it", "l'Aquila", "Aquila"),
    ("it", "L’AQUILA", "«Aquila»"),
    ("it", "dell'Aquila", "dell Aquila"),
    ("it", "un'amica", "amica"),
    ("fr", "l’eau", "Eau"),
    ("fr", "d'Artagnan", "d Artagnan"),
    ("pt", "os Lusíadas", "LUSI\u0301ADAS"),
    ("nl", "de Gouden Eeuw", "het gouden eeuw"),
    ("ja", "東京。", "東 京"),
    ("ja", "１９７２年", "1972年"),
    ("th", "กรุงเทพ", "“กรุงเทพ”"),
    ("ru", "«Москва»", "москва"),
    # A language of which nothing is known.
    ("xx", "¿Sí?", "sí"),
  ],
)
def test_answers_that_are_the_same_in_their_language(language, one, other):
  assert answers.is_correct(one, [other], language=language)
  assert answers.token_f1(one, other, language) == 1.0


@pytest.mark.parametrize(
  ("language", "one", "other", "f1"),
  [
    # An article without a word after it is a part of the name.
    ("it", "Umberto I", "Umberto", 2 / 3),
    # Only these languages have articles, and elisions.
    ("ru", "the Москва", "Москва", 2 / 3),
    ("nl", "d'Artagnan", "d Artagnan", 0.0),
    # Two of three characters, and "NBA" is one word of two.
    ("ja", "東京都", "東京", 4 / 5),
    ("th", "NBA กข", "NBA", 1 / 2),
  ],
)
def test_answers_that_share_some_words(language, one, other, f1):
  assert not answers.exact_match(one, other, language)
  assert answers.token_f1(one, other, language) == pytest.approx(f1)


@pytest.mark.parametrize(
  ("language", "text", "answer", "contained"),
  [
    ("zh", "东京都很大。", "东京", True),
    ("zh", "东京都很大。", "京很", False),
    ("th", "เขาอยู่กรุงเทพมา", "กรุงเทพ", True),
    ("ja", "ガラスの城", "ガラス", True),
    ("it", "vive a L'Aquila.", "aquila", True),
    ("de", "Hauptstadt", "Haupt", False),
    # English text is DPR's: a run of ideographs is one word.
    ("en", "东京都很大。", "东京", False),
  ],
)
def test_texts_without_spaces_contain_answers(
  language, text, answer, contained
):
  assert answers.contains_answer(text, [answer], language=language) == contained
