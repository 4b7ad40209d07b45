"""Codes of languages, and scripts."""

import pytest

from realm_jax.text.languages import LanguageError, require_language, script


@pytest.mark.parametrize(
  ("code", "near"),
  [
    ("german", "de"),
    ("pt-BR", "pt"),
    ("EN", "en"),
    ("jp", "ja"),
    ("", "none"),
    ("1", "none"),
  ],
)
def test_an_unknown_code_names_near_ones(code, near):
  with pytest.raises(LanguageError, match=f"near it: .*{near}"):
    require_language(code)


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("A café.", "Latin"),
    ("Ёлка in 1987", "Cyrillic"),
    ("กรุงเทพ", "Thai"),
    ("東京に住む", "Chinese or Japanese"),
    ("12 — ½", ""),
  ],
)
def test_the_script_of_most_letters(text, expected):
  assert script(text) == expected
