"""Normalization of answers in every language, and texts that contain them."""

import numpy as np
import pytest

from realm_jax.answers import match
from realm_jax.answers.normalize import normalize_answer
from tests.golden import make_scores


@pytest.mark.parametrize("language", make_scores.HAND_WRITTEN)
def test_the_languages_of_mlqa_are_scored_as_its_script_does(language):
  texts = make_scores.answers_in(language)
  pairs = make_scores.pairs_in(language)
  with np.load(make_scores.MLQA) as released:
    digests = [make_scores.digest(normalize_answer(t, language)) for t in texts]
    np.testing.assert_array_equal(digests, released[f"{language} digests"])
    correct = [match.exact_match(*pair, language) for pair in pairs]
    expected = np.unpackbits(released[f"{language} correct"], count=len(pairs))
    np.testing.assert_array_equal(correct, expected)
    f1 = [match.token_f1(*pair, language) for pair in pairs]
    np.testing.assert_allclose(f1, released[f"{language} f1"], atol=1e-6)


@pytest.mark.parametrize(
  ("language", "one", "other", "f1"),
  [
    ("it", "l'Aquila", "Aquila", 1),
    ("it", "L’AQUILA", "«Aquila»", 1),
    ("it", "dell'Aquila", "dell Aquila", 1),
    ("it", "un'amica", "amica", 1),
    # An article without a word after it is a part of the name.
    ("it", "Umberto I", "Umberto", 2 / 3),
    ("fr", "d'Artagnan", "d Artagnan", 1),
    ("pt", "os Lusíadas", "LUSI\u0301ADAS", 1),
    ("nl", "de Gouden Eeuw", "het gouden eeuw", 1),
    # Only these languages have articles, and elisions.
    ("nl", "d'Artagnan", "d Artagnan", 0),
    ("ru", "the Москва", "«москва»", 2 / 3),
    # Two of three characters, and "NBA" is one word of two.
    ("ja", "東京都", "東京", 4 / 5),
    ("ja", "東京。", "東 京", 1),
    ("ja", "１９７２年", "1972年", 1),
    ("th", "กรุงเทพ", "“กรุงเทพ”", 1),
    ("th", "NBA กข", "NBA", 1 / 2),
    # A language of which nothing is known.
    ("xx", "¿Sí?", "sí", 1),
  ],
)
def test_answers_in_their_language(language, one, other, f1):
  assert match.is_correct(one, [other], language=language) == (f1 == 1)
  assert match.token_f1(one, other, language) == pytest.approx(f1)


@pytest.mark.parametrize(
  ("language", "text", "answer", "contained"),
  [
    ("zh", "东京都很大。", "东京", True),
    ("zh", "东京都很大。", "京很", False),
    ("it", "vive a L'Aquila.", "aquila", True),
    # English text is DPR's: words and other characters, as they are.
    ("en", "东京都很大。", "东京", False),
    ("en", "in 1972\u00a0and\u200blater", "1972 and later", True),
    ("en", "a Café here", "cafe\u0301", True),
    ("en", "the U.S. army", "u.s.", True),
    ("en", "the cats", "cat", False),
    ("en", "the cats", " ", False),
  ],
)
def test_texts_contain_answers(language, text, answer, contained):
  assert match.contains_answer(text, [answer], language=language) == contained
