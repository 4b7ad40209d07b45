"""Decides whether a prediction is correct, and whether a text has an answer.

The field has three definitions of "the same answer". `is_correct` normalizes
predictions. `contains_answer` compares words, as DPR does for recall@k.
Training searches for the characters (`occurrences`) and wordpieces (`spans`) of
an answer. A reference of kind "regex" is a pattern instead (`patterns`).
"""

import collections
import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from realm_jax.answers.normalize import Translation, normalize_answer, rules_of
from realm_jax.answers.patterns import compiled
from realm_jax.errors import RealmError
from realm_jax.text.languages import ENGLISH, UNSPACED_CHARACTER

AnswerKind = Literal["string", "regex"]


def exact_match(
  prediction: str, reference: str, language: str = ENGLISH
) -> bool:
  """Returns whether the two are equal after normalization."""
  expected = normalize_answer(reference, language)
  return normalize_answer(prediction, language) == expected


def token_f1(prediction: str, reference: str, language: str = ENGLISH) -> float:
  """Returns the F1 score of normalized words, in [0, 1].

  Repeated words count each time, as in the SQuAD script. The score is 0 if one
  side has no words, and the language's `f1_of_nothing` if neither has any.
  """
  predicted = normalize_answer(prediction, language).split()
  expected = normalize_answer(reference, language).split()
  if not predicted and not expected:
    return rules_of(language).f1_of_nothing
  shared = collections.Counter(predicted) & collections.Counter(expected)
  num_shared = sum(shared.values())
  return 2.0 * num_shared / (len(predicted) + len(expected))


def is_correct(
  prediction: str,
  references: Iterable[str],
  *,
  kind: AnswerKind = "string",
  language: str = ENGLISH,
) -> bool:
  """Returns whether the prediction equals or matches any reference.

  Strings are compared after normalization, as in Google's released ORQA. As in
  its evaluation of CuratedTREC, a pattern must match the start of the raw
  prediction, which may be longer. An invalid pattern matches nothing.
  """
  if kind == "regex":
    return any(compiled(r).begins(prediction) for r in references)
  return any(exact_match(prediction, r, language) for r in references)


def _separated(character: str) -> str:
  """Separates words like the SimpleTokenizer of DrQA and DPR.

  Letters, numbers and marks remain, separators and control characters become
  spaces, and every other character becomes a word by itself.
  """
  category = unicodedata.category(character)[0]
  if category in "ZC":
    return " "
  return character if category in "LNM" else f" {character} "


_WORD_BOUNDARIES = Translation(_separated)


@functools.lru_cache(maxsize=16384)
def _word_sequence(text: str, language: str) -> str:
  """Returns the text's words, surrounded by single spaces for a search."""
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

  Strings match as sequences of whole, lower-cased words. Punctuation marks are
  words, and so are the characters of scripts without spaces, except in English.
  Patterns match anywhere, after NFD on both sides. This is DPR's `has_answer`
  (Karpukhin et al. 2020, arXiv 2004.04906), except that an answer without words
  is never contained. Google's ORQA searches for the answer's exact characters
  instead; see `contains_characters`.
  """
  if kind == "regex":
    text = unicodedata.normalize("NFD", text)
    decomposed = (unicodedata.normalize("NFD", r) for r in references)
    return any(compiled(pattern).occurs(text) for pattern in decomposed)
  words = _word_sequence(text, language)
  sequences = (_word_sequence(reference, language) for reference in references)
  return any(sequence.strip() and sequence in words for sequence in sequences)


def rouge_l(prediction: str, references: Iterable[str]) -> float:
  """Returns ROUGE-L, the best F-measure over the references (Lin 2004).

  Words are stemmed with Porter's algorithm.

  Raises:
    RealmError: The library rouge-score is not installed.
  """
  return _rouge().score_multi([*references], prediction)["rougeL"].fmeasure


@functools.cache
def _rouge() -> Any:
  try:
    from rouge_score import rouge_scorer
  except ImportError as error:
    raise RealmError(
      "ROUGE_L needs the library rouge-score; "
      "`pip install 'realm_jax[rouge]'`, or bind ROUGE_L = False"
    ) from error
  return rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)


def contains_characters(text: bytes, references: Iterable[str]) -> bool:
  """Returns whether a text, in UTF-8, has the exact characters of an answer.

  This is how Google's released ORQA marks the blocks that its retriever should
  find (`HasAnswer` in `orqa_ops.cc`): "Ali" is in "Alice", but not in "ALI".
  """
  return any(reference.encode() in text for reference in references)
