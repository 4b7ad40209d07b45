"""Normalization of answers, before they are compared.

English follows the SQuAD script, in the version of Google's released ORQA.
Spanish, German, Arabic, Hindi, Vietnamese and Chinese follow the MLQA script
(`mlqa_evaluation_v1.py`), with all its peculiarities. No widely used script
covers other languages. For these, Unicode punctuation is removed, and articles
if `_RULES` lists them. Each character of a script without spaces between words
is a word.
"""

import re
import string
import unicodedata
from collections.abc import Callable
from typing import Literal, NamedTuple

import regex

from realm_jax.text.languages import ENGLISH, UNSPACED_CHARACTER

_NOTHING = re.compile(r"(?!)")
# Elided articles, as in l'Aquila, dell'Aquila and d’Artagnan.
_ELISION = re.compile(r"(?:\bl)?['’](?=\w)")


class Translation(dict[int, str]):
  """A table for `str.translate` that a rule fills as characters occur."""

  def __init__(self, rule: Callable[[str], str]):
    super().__init__()
    self._rule = rule

  def __missing__(self, code: int) -> str:
    self[code] = self._rule(chr(code))
    return self[code]


def _without_punctuation(character: str) -> str:
  """Drops the punctuation of ASCII and Unicode."""
  is_punctuation = unicodedata.category(character).startswith("P")
  return "" if is_punctuation or character in string.punctuation else character


_ASCII_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation), "")
_PUNCTUATION = Translation(_without_punctuation)


class Rules(NamedTuple):
  """Rules that normalize the lower-cased answers of a language.

  Attributes:
    form: Unicode normal form, which is applied first.
    elision: Pattern that is replaced with a space before punctuation is
      dropped.
    punctuation: Translation table that drops punctuation.
    articles: Pattern that is replaced with a space after that.
    characters: Pattern of characters that are words by themselves.
    f1_of_nothing: F1 of two answers without words: 1 by the rule of SQuAD 2.0,
      but 0 in MLQA's script, as in SQuAD 1.1's, although their exact match is
      1.
  """

  form: Literal["NFD", "NFKC"] | None = "NFKC"
  elision: re.Pattern[str] = _NOTHING
  punctuation: dict[int, str] = _PUNCTUATION
  articles: re.Pattern[str] = _NOTHING
  characters: re.Pattern[str] | regex.Pattern[str] = UNSPACED_CHARACTER
  f1_of_nothing: float = 1.0


def _mlqa(articles: str = "(?!)", characters: str = "(?!)") -> Rules:
  return Rules(
    form=None,
    articles=re.compile(articles),
    characters=re.compile(characters),
    f1_of_nothing=0.0,
  )


def _own(articles: str, elision: re.Pattern[str] = _NOTHING) -> Rules:
  # A word must follow an article, unlike the final I in Umberto I.
  one_of = articles.replace(" ", "|")
  pattern = re.compile(rf"\b(?:{one_of})\s+(?=\S)")
  return Rules(articles=pattern, elision=elision)


_OTHER = Rules()
_RULES = {
  ENGLISH: Rules(
    form="NFD",
    punctuation=_ASCII_PUNCTUATION,
    articles=re.compile(r"\b(a|an|the)\b"),
    characters=_NOTHING,
  ),
  "ar": _mlqa("ال"),
  "de": _mlqa(
    r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b"
  ),
  "es": _mlqa(r"\b(un|una|unos|unas|el|la|los|las)\b"),
  "hi": _mlqa(),
  "vi": _mlqa(r"\b(của|là|cái|chiếc|những)\b"),
  "zh": _mlqa(characters="[\u4e00-\u9fa5]"),
  "ca": _own("el la els les un una uns unes", _ELISION),
  "fr": _own("le la les un une des", _ELISION),
  "it": _own("il lo la i gli le un uno una", _ELISION),
  "nl": _own("de het een"),
  "pt": _own("o a os as um uma uns umas"),
}


def rules_of(language: str) -> Rules:
  """Returns the rules of a language, or the default rules."""
  return _RULES.get(language, _OTHER)


def normalize_answer(text: str, language: str = ENGLISH) -> str:
  """Normalizes a prediction or a reference for comparison.

  For English, as in Google's `language/orqa/utils/eval_utils.py`, this applies
  Unicode NFD, lowercases, drops ASCII punctuation, drops the articles a, an and
  the, and collapses white space, in this order. Accents remain, as combining
  marks. Other languages have their own rules, in the same order. For a language
  without rules, only punctuation is dropped.
  """
  rules = rules_of(language)
  if rules.form is not None:
    text = unicodedata.normalize(rules.form, text)
  text = rules.elision.sub(" ", text.lower())
  text = rules.articles.sub(" ", text.translate(rules.punctuation))
  return " ".join(rules.characters.sub(r" \g<0> ", text).split())
