"""What is wrong with single questions, counted and listed."""

import unicodedata
from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from realm_jax.text.answers import AnswerKind, bad_patterns

_MAX_LISTED = 5


def listed(items: Sequence[str]) -> str:
  """Joins the first few items, and says how many there are besides."""
  text = "; ".join(items[:_MAX_LISTED])
  rest = len(items) - _MAX_LISTED
  return f"{text}; and {rest:,} more" if rest > 0 else text


class QuestionChecks:
  """Notes problems of questions while their file is read.

  It keeps four bytes for each question, and the few that have a problem.

  Args:
    kind: Whether the answers are strings or regular expressions.
  """

  def __init__(self, kind: AnswerKind):
    self._kind = kind
    self._num_characters = array("I")
    self._unanswered: list[str] = []
    self._bad_patterns: list[str] = []
    self._never_matched: list[str] = []
    self._repeated: list[str] = []

  def note(
    self, question: str, answers: Sequence[str], question_id: str
  ) -> None:
    """Notes the next question."""
    # The tokenizer may take more characters apart, never put them together.
    if not question.isascii():
      question = unicodedata.normalize("NFKD", question)
    self._num_characters.append(len(question))
    if not any(answer.strip() for answer in answers):
      self._unanswered.append(question_id)
    if self._kind == "regex":
      bad = bad_patterns(answers)
      self._bad_patterns.extend(
        f"{question_id} ({pattern!r}: {why})" for pattern, why in bad.items()
      )
      if bad and len(bad) == len(set(answers)):
        self._never_matched.append(question_id)

  def note_repeated_ids(self, ids: Sequence[str]) -> None:
    """Notes ids that several questions have."""
    self._repeated = list(ids)

  def may_be_longer_than(self, num_tokens: int) -> list[int]:
    """Returns the numbers of the questions with more characters than that."""
    lengths = np.frombuffer(self._num_characters, np.uint32)
    return np.flatnonzero(lengths > num_tokens).tolist()

  def problems(self) -> list[str]:
    """Describes the problems that do not depend on the run."""
    found = []
    if self._unanswered:
      found.append(
        f"{len(self._unanswered):,} questions have no answer; they teach "
        f"nothing and are scored as wrong: {listed(self._unanswered)}"
      )
    if self._bad_patterns:
      found.append(
        f"{len(self._bad_patterns):,} answers are no valid patterns and match "
        f"nothing: {listed(self._bad_patterns)}"
      )
    if self._never_matched:
      found.append(
        f"{len(self._never_matched):,} questions have no valid pattern; they "
        "teach nothing and are scored as wrong: "
        f"{listed(self._never_matched)}"
      )
    if self._repeated:
      found.append(
        f"{len(self._repeated):,} ids belong to several questions, whose "
        f"predictions cannot be told apart: {listed(self._repeated)}"
      )
    return found

  def cut_questions(
    self, sizes: Mapping[str, int], num_tokens: int
  ) -> list[str]:
    """Describes questions that do not fit, given the wordpieces of each."""
    if not sizes:
      return []
    named = [f"{name} ({size})" for name, size in sizes.items()]
    return [
      f"{len(named):,} of {len(self._num_characters):,} questions have more "
      f"than {num_tokens} wordpieces and are cut; raise QUERY_LENGTH to "
      f"{max(sizes.values()) + 2} for all: {listed(named)}"
    ]
