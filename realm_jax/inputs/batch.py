"""A batch of examples on the host."""

import dataclasses
import functools
from typing import cast

import numpy as np
from jaxtyping import Bool, Int64

from realm_jax.answers.match import AnswerKind
from realm_jax.errors import RealmError

# The position of a row that only fills up a batch.
FILLER = -1


class TaskError(RealmError):
  """A task that is missing, or cannot do what was asked of it."""


@dataclasses.dataclass(frozen=True)
class Batch:
  """One process's rows of a global batch.

  Attributes:
    arrays: Numeric features of fixed shape, padded with 0.
    host: Other features, such as texts, padded to the longest of the batch.
    positions: Stream position of each row's example; -1 in a row that only
      fills up the batch, since it has run out of examples.
    next_positions: Stream position from which each row goes on after this
      batch.
  """

  arrays: dict[str, np.ndarray]
  host: dict[str, np.ndarray]
  positions: Int64[np.ndarray, " b"]
  next_positions: Int64[np.ndarray, " b"]

  @property
  def is_real(self) -> Bool[np.ndarray, " b"]:
    """Whether a row is an example, and no filler."""
    return self.positions != FILLER

  def array(self, name: str) -> np.ndarray:
    """Returns a numeric feature of fixed shape.

    Raises:
      TaskError: The task does not give it.
    """
    return _feature(self.arrays, name)

  def texts(self, name: str) -> list[str]:
    """Returns a feature that has one text a row, such as "question".

    Raises:
      TaskError: The task does not give it.
    """
    return [text.decode() for text in _feature(self.host, name)]

  @functools.cached_property
  def answers(self) -> list[list[str]]:
    """The texts of each row's answers."""
    return [
      [text.decode() for text in row if text] for row in self.host["answers"]
    ]

  @functools.cached_property
  def answer_kinds(self) -> list[AnswerKind]:
    """Whether each row's answers are strings or regular expressions."""
    return cast(list[AnswerKind], self.texts("answer_kind"))

  @functools.cached_property
  def answer_tokens(self) -> list[list[tuple[int, ...]]]:
    """The token ids of each row's answers; a pattern has none."""
    return [
      [tuple(answer[answer != 0].tolist()) for answer in row if answer.any()]
      for row in self.host["answer_tokens"]
    ]


def _feature(features: dict[str, np.ndarray], name: str) -> np.ndarray:
  if name in features:
    return features[name]
  raise TaskError(
    f"the task gives no feature {name!r}, which this stage reads, only "
    f"{', '.join(sorted(features))}; let its preprocessors return {name!r}, as "
    "those of the tasks in tasks/ do"
  )
