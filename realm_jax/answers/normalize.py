"""Answers as text: what is left of one where it is compared.

English follows SQuAD's script as Google's released ORQA has it. Spanish,
German, Arabic, Hindi, Vietnamese and Chinese follow MLQA's
(`mlqa_evaluation_v1.py`), with all its peculiarities. No script that is widely
used covers other languages. They lose the punctuation of Unicode, and their
articles where `_RULES` has them, and each character of a script without spaces
between words is a word.
"""

import re
import string
import unicodedata
from collections.abc import Callable
from typing import Literal, NamedTuple

import regex

from realm_jax.text.languages import ENGLISH, UNSPACED_CHARACTER

_NOTHING = re.compile(r"(?!)")
# What l'Aquila, dell'Aquila and d’Artagnan have before the name's own letters.
_ELISION = re.compile(r"(?:\bl)?['’](?=\w)")


class Translation(dict[int, str]):
  """A table for `str.translate`, which a rule fills as characters occur."""

  def __init__(self, rule: Callable[[str], str]):
    super().__init__()
    self._rule = rule

  def __missing__(self, code: int) -> str:
    self[code] = self._rule(chr(code))
    return self[code]


def _without_punctuation(character: str) -> str:
  """Drops punctuation of ASCII and of Unicode."""
  is_punctuation = unicodedata.category(character).startswith("P")
  return "" if is_punctuation or character in string.punctuation else character


_ASCII_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation), "")
_PUNCTUATION = Translation(_without_punctuation)


class Rules(NamedTuple):
  """What happens to an answer of a language once it is in lower case.

  Attributes:
    form: Normal form of Unicode that the text gets first.
    elision: What becomes white space before punctuation is dropped.
    punctuation: Translation table that drops punctuation.
    articles: What becomes white space after that.
    characters: Characters that are words by themselves.
    f1_of_nothing: F1 of two answers that both have no words: 1 by the rule of
      SQuAD 2.0, and 0 in MLQA's script, as in SQuAD 1.1's, below its own exact
      match.
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
  # An article has a word after it, as the last I of Umberto I has not.
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
  """Returns the rules of a language; the same for all that have none."""
  return _RULES.get(language, _OTHER)


def normalize_answer(text: str, language: str = ENGLISH) -> str:
  """Normalizes a prediction or a reference, to compare them.

  In English: Unicode NFD, lower case, ASCII punctuation dropped, the articles
  a, an and the dropped, runs of white space collapsed, in this order, as in
  Google's `language/orqa/utils/eval_utils.py`. Accents remain, as combining
  marks. Other languages have rules of their own in the same order; one without
  rules loses punctuation alone.
  """
  rules = rules_of(language)
  if rules.form is not None:
    text = unicodedata.normalize(rules.form, text)
  text = rules.elision.sub(" ", text.lower())
  text = rules.articles.sub(" ", text.translate(rules.punctuation))
  return " ".join(rules.characters.sub(r" \g<0> ", text).split())
