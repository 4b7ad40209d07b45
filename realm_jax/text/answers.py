"""Answers as text: normalising, scoring and finding them.

Three definitions of "the same answer" are in use in this field, and each has
its place here:

* a **prediction** is judged after normalisation (`is_correct`, `token_f1`),
  as by the SQuAD script and Google's released ORQA evaluation;
* a **retrieved text** contains an answer when the answer's words occur in it
  in sequence (`contains_answer`), as counted by DrQA and DPR;
* **training** marks the token spans equal to an answer's wordpieces (see
  `answer_spans`), and the blocks in whose text an answer's characters stand
  (`contains_characters`), both as Google's released ORQA.

A reference of kind "regex" is a pattern (CuratedTREC) instead of a string.
"""

import collections
import functools
import re
import string
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

from absl import logging

AnswerKind = Literal["string", "regex"]

_PATTERN_FLAGS = re.IGNORECASE | re.UNICODE | re.MULTILINE
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
  """The form in which a prediction is compared with a reference.

  Unicode NFD, lower case, ASCII punctuation dropped, the articles a, an and
  the dropped, runs of white space collapsed: in this order, as in Google's
  `language/orqa/utils/eval_utils.py`. Accents stay, as marks of their own.
  """
  text = unicodedata.normalize("NFD", text).lower()
  text = text.translate(_DROP_PUNCTUATION)
  return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, reference: str) -> bool:
  """Whether the two are equal once normalised."""
  return normalize_answer(prediction) == normalize_answer(reference)


def token_f1(prediction: str, reference: str) -> float:
  """Harmonic mean of precision and recall over normalised words, in [0, 1].

  Words are counted with their multiplicity, as in the SQuAD script. Where
  one side has no words left the score is 1 if both have none, else 0 (the
  rule of SQuAD 2.0; 1.1 gives 0 to both, below its own exact match).
  """
  predicted = normalize_answer(prediction).split()
  wanted = normalize_answer(reference).split()
  if not predicted or not wanted:
    return float(predicted == wanted)
  shared = collections.Counter(predicted) & collections.Counter(wanted)
  num_shared = sum(shared.values())
  return 2.0 * num_shared / (len(predicted) + len(wanted))


@functools.lru_cache(maxsize=65536)
def _compiled(pattern: str) -> re.Pattern[str] | str:
  """The compiled pattern, or why it cannot be compiled; warns once."""
  try:
    with warnings.catch_warnings():
      # Patterns come from data; what a later Python may read differently is
      # nothing the user can act on.
      warnings.simplefilter("ignore")
      return re.compile(pattern, _PATTERN_FLAGS)
  except (re.error, OverflowError, RecursionError) as error:
    logging.warning("answer pattern %r never matches: %s", pattern, error)
    return str(error)


def bad_patterns(patterns: Iterable[str]) -> dict[str, str]:
  """The patterns that cannot be compiled, each with the reason."""
  reasons = {pattern: _compiled(pattern) for pattern in patterns}
  return {p: why for p, why in reasons.items() if isinstance(why, str)}


def regex_match(prediction: str, pattern: str) -> bool:
  """Whether the pattern matches from the start of the prediction as it is.

  The prediction is not normalised and may go on after the match, as in
  Google's evaluation of CuratedTREC. A bad pattern matches nothing.
  """
  compiled = _compiled(pattern)
  return not isinstance(compiled, str) and bool(compiled.match(prediction))


def is_correct(
  prediction: str, references: Iterable[str], *, kind: AnswerKind = "string"
) -> bool:
  """Whether the prediction equals, or matches, any of the references."""
  match = regex_match if kind == "regex" else exact_match
  return any(match(prediction, reference) for reference in references)


def best_token_f1(prediction: str, references: Iterable[str]) -> float:
  """The highest `token_f1` over the references; 0 where there are none."""
  return max((token_f1(prediction, r) for r in references), default=0.0)


class _WordBoundaries(dict[int, str]):
  """A translation after which `split` yields DrQA's tokens.

  Letters, numbers and marks stay, separators and control characters become
  spaces, and every other character becomes a word by itself: the classes of
  DrQA's and DPR's SimpleTokenizer. Filled as characters are met.
  """

  def __missing__(self, code: int) -> str:
    character = chr(code)
    category = unicodedata.category(character)[0]
    if category in "ZC":
      character = " "
    elif category not in "LNM":
      character = f" {character} "
    self[code] = character
    return character


_WORD_BOUNDARIES = _WordBoundaries()


@functools.lru_cache(maxsize=16384)
def _word_sequence(text: str) -> str:
  """The text's words, each between single spaces, for substring search."""
  text = unicodedata.normalize("NFD", text).translate(_WORD_BOUNDARIES)
  return f" {' '.join(text.lower().split())} "


def contains_answer(
  text: str, references: Sequence[str], *, kind: AnswerKind = "string"
) -> bool:
  """Whether a retrieved text contains one of the answers, for recall@k.

  Strings match as sequences of whole lower-cased words (punctuation marks
  are words); patterns are searched anywhere, after NFD on both sides. As in
  DPR's `has_answer` (Karpukhin et al. 2020, arXiv 2004.04906), except that
  an answer without any word is never contained. Google's ORQA looks for the
  answer's exact characters instead: `contains_characters`.
  """
  if kind == "regex":
    text = unicodedata.normalize("NFD", text)
    compiled = (_compiled(unicodedata.normalize("NFD", r)) for r in references)
    return any(
      not isinstance(c, str) and bool(c.search(text)) for c in compiled
    )
  words = _word_sequence(text)
  wanted = (_word_sequence(reference) for reference in references)
  return any(sequence.strip() and sequence in words for sequence in wanted)


def contains_characters(text: bytes, references: Iterable[str]) -> bool:
  """Whether one of the answers stands in a text, letter for letter.

  As Google's released ORQA marks the blocks that its retriever should find
  (`HasAnswer` of `orqa_ops.cc`): "Ali" stands in "Alice", and not in "ALI".

  Args:
    text: in UTF-8, as it was written.
    references: the answers; an empty one stands in every text.
  """
  return any(reference.encode() in text for reference in references)
