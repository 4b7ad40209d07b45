"""The distinct answers of a task, which a search of all blocks looks for."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from realm_jax.inputs.batch import Batch
from realm_jax.text.answers import AnswerKind


class QuestionAnswers(NamedTuple):
  """The answers of one question: their texts and, of strings, their tokens."""

  kind: AnswerKind
  texts: Sequence[str]
  tokens: Sequence[Sequence[int]]

  @property
  def strings(self) -> set[str]:
    """The answers that are looked for as they are."""
    return set() if self.kind == "regex" else set(self.texts) - {""}

  @property
  def patterns(self) -> set[str]:
    """The answers that are regular expressions."""
    return set(self.texts) - {""} if self.kind == "regex" else set()


@dataclasses.dataclass(frozen=True)
class DistinctAnswers:
  """Answers that are strings, without repetition and numbered."""

  strings: tuple[str, ...] = ()

  @classmethod
  def of(cls, questions: Iterable[QuestionAnswers]) -> "DistinctAnswers":
    """Collects the answers of questions."""
    return cls(tuple(sorted(set().union(*(q.strings for q in questions)))))

  def __len__(self) -> int:
    return len(self.strings)

  @functools.cached_property
  def numbers(self) -> dict[str, int]:
    """The number of each string."""
    return {string: number for number, string in enumerate(self.strings)}

  @functools.cached_property
  def sha256(self) -> str:
    """Hash of the answers, in their order."""
    return hashlib.sha256(json.dumps(self.strings).encode()).hexdigest()


def answers_of_batch(batch: Batch) -> list[QuestionAnswers]:
  """Returns the answers of each question."""
  rows = zip(
    batch.answer_kinds, batch.answers, batch.answer_tokens, strict=True
  )
  return [QuestionAnswers(*row) for row in rows]
