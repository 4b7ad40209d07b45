"""Answers as text: normalizing, scoring and finding them.

The field uses three definitions of "the same answer":

* a **prediction** is judged after normalization (`is_correct`, `token_f1`),
  as in the SQuAD script and Google's released ORQA evaluation, or by the rules
  of another language (`normalize_answer`);
* a **retrieved text** contains an answer if the answer's words occur in it
  in sequence (`contains_answer`), as in DrQA and DPR;
* **training** marks the token spans that equal an answer's wordpieces (see
  `answer_spans`), and the blocks whose text has an answer's characters
  (`contains_characters`), both as in Google's released ORQA. All blocks are
  searched at once for all answers: `realm_jax/answers`.

A reference of kind "regex" is a pattern (CuratedTREC) instead of a string; see
`patterns`.
"""

import collections
import functools
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import regex

from realm_jax.text.languages import ENGLISH, UNSPACED_CHARACTER
from realm_jax.text.patterns import compiled

AnswerKind = Literal["string", "regex"]


# --- Normalization ------------------------------------------------------------

# English follows SQuAD's script as Google's released ORQA has it. Spanish,
# German, Arabic, Hindi, Vietnamese and Chinese follow MLQA's
# (`mlqa_evaluation_v1.py`), with all its peculiarities. No script that is
# widely used covers other languages. They lose the punctuation of Unicode, and
# their articles where `_RULES` has them, and each character of a script without
# spaces between words is a word.

_NOTHING = re.compile(r"(?!)")
# What l'Aquila, dell'Aquila and d’Artagnan have before the name's own letters.
_ELISION = re.compile(r"(?:\bl)?['’](?=\w)")


class _Translation(dict[int, str]):
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
_PUNCTUATION = _Translation(_without_punctuation)


class _Rules(NamedTuple):
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


def _mlqa(articles: str = "(?!)", characters: str = "(?!)") -> _Rules:
  return _Rules(
    form=None,
    articles=re.compile(articles),
    characters=re.compile(characters),
    f1_of_nothing=0.0,
  )


def _own(articles: str, elision: re.Pattern[str] = _NOTHING) -> _Rules:
  # An article has a word after it, as the last I of Umberto I has not.
  one_of = articles.replace(" ", "|")
  pattern = re.compile(rf"\b(?:{one_of})\s+(?=\S)")
  return _Rules(articles=pattern, elision=elision)


_OTHER = _Rules()
_RULES = {
  ENGLISH: _Rules(
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


def normalize_answer(text: str, language: str = ENGLISH) -> str:
  """Normalizes a prediction or a reference, to compare them.

  In English: Unicode NFD, lower case, ASCII punctuation dropped, the articles
  a, an and the dropped, runs of white space collapsed, in this order, as in
  Google's `language/orqa/utils/eval_utils.py`. Accents remain, as combining
  marks. Other languages have rules of their own in the same order; one without
  rules loses punctuation alone.
  """
  rules = _RULES.get(language, _OTHER)
  if rules.form is not None:
    text = unicodedata.normalize(rules.form, text)
  text = rules.elision.sub(" ", text.lower())
  text = rules.articles.sub(" ", text.translate(rules.punctuation))
  return " ".join(rules.characters.sub(r" \g<0> ", text).split())


# --- Scores and occurrences ---------------------------------------------------


def exact_match(
  prediction: str, reference: str, language: str = ENGLISH
) -> bool:
  """Returns whether the two are equal after normalization."""
  wanted = normalize_answer(reference, language)
  return normalize_answer(prediction, language) == wanted


def token_f1(prediction: str, reference: str, language: str = ENGLISH) -> float:
  """Returns the F1 score of normalized words, in [0, 1].

  Words are counted with their multiplicity, as in the SQuAD script. If one
  side has no words, the score is 0, but if both have none, it is the
  language's `f1_of_nothing`.
  """
  predicted = normalize_answer(prediction, language).split()
  wanted = normalize_answer(reference, language).split()
  if not predicted and not wanted:
    return _RULES.get(language, _OTHER).f1_of_nothing
  shared = collections.Counter(predicted) & collections.Counter(wanted)
  num_shared = sum(shared.values())
  return 2.0 * num_shared / (len(predicted) + len(wanted))


def bad_patterns(references: Iterable[str]) -> dict[str, str]:
  """Returns the patterns that are not valid, each with the reason."""
  problems = {pattern: compiled(pattern).problem for pattern in references}
  return {pattern: problem for pattern, problem in problems.items() if problem}


def is_correct(
  prediction: str,
  references: Iterable[str],
  *,
  kind: AnswerKind = "string",
  language: str = ENGLISH,
) -> bool:
  """Returns whether the prediction equals or matches any reference.

  A pattern is to match the start of the raw prediction, which may be longer, as
  in Google's evaluation of CuratedTREC. A bad pattern matches nothing.
  """
  if kind == "regex":
    return any(compiled(r).begins(prediction) for r in references)
  return any(exact_match(prediction, r, language) for r in references)


def best_token_f1(
  prediction: str, references: Iterable[str], language: str = ENGLISH
) -> float:
  """Returns the highest `token_f1` over the references; 0 without any."""
  scores = (token_f1(prediction, r, language) for r in references)
  return max(scores, default=0.0)


def _separated(character: str) -> str:
  """Separates words as DrQA's and DPR's SimpleTokenizer do.

  Letters, numbers and marks remain, separators and control characters become
  spaces, and every other character becomes a word by itself.
  """
  category = unicodedata.category(character)[0]
  if category in "ZC":
    return " "
  return character if category in "LNM" else f" {character} "


_WORD_BOUNDARIES = _Translation(_separated)


@functools.lru_cache(maxsize=16384)
def _word_sequence(text: str, language: str) -> str:
  """Returns the text's words between single spaces, for substring search."""
  text = unicodedata.normalize("NFD", text)
  if language != ENGLISH:
    text = UNSPACED_CHARACTER.sub(r" \g<0> ", text)
  return f" {' '.join(text.translate(_WORD_BOUNDARIES).lower().split())} "


def contains_answer(
  text: str,
  references: Sequence[str],
  *,
  kind: AnswerKind = "string",
  language: str = ENGLISH,
) -> bool:
  """Returns whether a retrieved text contains an answer, for recall@k.

  Strings match as sequences of whole lower-cased words (punctuation marks
  are words, and so are the characters of scripts without spaces, but in
  English); patterns are searched anywhere, after NFD on both sides. This is
  DPR's `has_answer` (Karpukhin et al. 2020, arXiv 2004.04906), except that
  an answer without any word is never contained. Google's ORQA looks for the
  answer's exact characters instead: `contains_characters`.
  """
  if kind == "regex":
    text = unicodedata.normalize("NFD", text)
    decomposed = (unicodedata.normalize("NFD", r) for r in references)
    return any(compiled(pattern).occurs(text) for pattern in decomposed)
  words = _word_sequence(text, language)
  wanted = (_word_sequence(reference, language) for reference in references)
  return any(sequence.strip() and sequence in words for sequence in wanted)


def contains_characters(text: bytes, references: Iterable[str]) -> bool:
  """Returns whether a text, in UTF-8, has the exact characters of an answer.

  Google's released ORQA marks so the blocks that its retriever should find
  (`HasAnswer` of `orqa_ops.cc`): "Ali" is in "Alice", and not in "ALI".
  """
  return any(reference.encode() in text for reference in references)
