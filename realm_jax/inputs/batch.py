"""A batch of examples on the host."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from jaxtyping import Bool, Int64

from realm_jax.answers.match import AnswerKind
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.text.vocabulary import SENTINEL

# Position of a filler row in a batch.
FILLER = -1


# An example's features by name: arrays, and NumPy's scalars and texts.
Example: TypeAlias = dict[str, np.ndarray | np.generic | bytes]


class FeatureSpec(NamedTuple):
  """The shape of a feature, whose first axis may be None, and its type."""

  shape: Sequence[int | None]
  dtype: type[np.generic] | type[object]


class TaskError(RealmError):
  """A task is missing, or lacks a feature that a stage needs."""


class QuestionAnswers(NamedTuple):
  """The answers of one question: their texts and, for strings, their tokens."""

  kind: AnswerKind
  texts: Sequence[str]
  tokens: Sequence[Sequence[int]]

  @property
  def strings(self) -> set[str]:
    """Answers that are matched literally."""
    return set() if self.kind == "regex" else set(self.texts) - {""}

  @property
  def patterns(self) -> set[str]:
    """Answers that are regular expressions."""
    return set(self.texts) - {""} if self.kind == "regex" else set()


@dataclasses.dataclass(frozen=True)
class Batch:
  """One process's rows of a global batch.

  Attributes:
    arrays: Numeric features of fixed shape, padded with 0.
    host: Other features, such as texts, padded to the longest of the batch.
    positions: Stream position of each row's example; -1 for filler, in a row
      that has run out of examples.
    next_positions: Stream position at which each row continues after this
      batch.
  """

  arrays: dict[str, np.ndarray]
  host: dict[str, np.ndarray]
  positions: Int64[np.ndarray, " b"]
  next_positions: Int64[np.ndarray, " b"]

  @property
  def is_real(self) -> Bool[np.ndarray, " b"]:
    """Whether a row is an example, and not filler."""
    return self.positions != FILLER

  def array(self, name: str) -> np.ndarray:
    """Returns a numeric feature of fixed shape.

    Raises:
      TaskError: The task does not have the feature.
    """
    return _feature(self.arrays, name)

  def texts(self, name: str) -> list[str]:
    """Returns a feature with one text for each row, such as "question".

    Raises:
      TaskError: The task does not have the feature.
    """
    return [text.decode() for text in _feature(self.host, name)]

  @functools.cached_property
  def answers(self) -> list[QuestionAnswers]:
    """The answers of each row's question."""
    rows = zip(
      self.texts("answer_kind"),
      self.host["answers"],
      self.host["answer_tokens"],
      strict=True,
    )
    return [
      QuestionAnswers(
        cast(AnswerKind, kind),
        [text.decode() for text in texts if text],
        [answer[answer != 0].tolist() for answer in tokens if answer.any()],
      )
      for kind, texts, tokens in rows
    ]


def texts_with_sentinels(batch: Batch, corpus: Corpus) -> list[tuple[str, str]]:
  """Returns masked sentences with sentinels, and the masked words.

      ("Ada was in <extra_id_0>.", "<extra_id_0> Velt <extra_id_1>")

  T5 is pre-trained on such inputs and targets. A sentinel replaces adjacent
  masks. The texts are the original ones in `corpus`, which must be
  `TaskContext.examples`.
  """
  words, queries = corpus.vocabulary, batch.array("query").copy()
  is_masked = queries == words.mask_id
  # Masks that are scored have known tokens.
  row, slot = np.nonzero(batch.array("mask_weights"))
  place = batch.array("mask_positions")[row, slot]
  queries[row, place] = batch.array("mask_targets")[row, slot]
  pairs = list[tuple[str, str]]()
  sources = corpus.rows_of(batch.array("source_id")).tolist()
  for source, query, is_hidden in zip(sources, queries, is_masked, strict=True):
    size = np.flatnonzero(query == words.sep_id)[-1] - 1
    sentence, is_any = query[1 : size + 1], query[1 : size + 1] == words.mask_id
    block = corpus.block(source)
    whole_block = (0, len(block.body_token_ids))
    starts = (
      start
      for start, limit in [*block.sentences.tolist(), whole_block]
      if min(limit - start, len(query) - 2) == size
      and (is_any | (block.body_token_ids[start:][:size] == sentence)).all()
    )
    if (start := next(starts, None)) is None:
      raise TaskError(
        f"no sentence of the block {block.id} is the one that an example "
        "masks; the task's queries must be sentences of their source, or all "
        "of its text"
      )
    ranges = block.byte_ranges[start : start + size]
    text, done = block.text.encode(), ranges[0, 0]
    whole, target = b"", b""
    edges = np.flatnonzero(np.diff(is_hidden)).reshape(-1, 2).tolist()
    for number, (first, limit) in enumerate(edges):
      mark = SENTINEL.format(number).encode()
      begin, end = ranges[first, 0], ranges[limit - 1, 1]
      whole += text[done:begin] + mark
      target += b"%b %b " % (mark, text[begin:end])
      done = end
    whole += text[done : ranges[-1, 1]]
    target += SENTINEL.format(len(edges)).encode()
    pairs.append((whole.decode(), target.decode()))
  return pairs


def _feature(features: dict[str, np.ndarray], name: str) -> np.ndarray:
  if name in features:
    return features[name]
  raise TaskError(
    f"the task gives no feature {name!r}, which this stage reads, only "
    f"{', '.join(sorted(features))}; let its preprocessors return {name!r}, as "
    "those of the tasks in tasks/ do"
  )


def padded(
  values: Sequence[np.ndarray | np.generic | bytes],
  shape: Sequence[int | None],
  dtype: type[np.generic] | type[object],
) -> np.ndarray:
  """Stacks values, padded to a shape; None pads an axis to the longest."""
  if not len(shape):
    return np.array(values, dtype)
  longest = np.max([np.shape(value) for value in values], axis=0).astype(int)
  sizes = [
    most if size is None else size
    for size, most in zip(shape, longest.tolist(), strict=True)
  ]
  padding = b"" if dtype is object else 0
  joined = np.full((len(values), *sizes), padding, dtype)
  for place, value in enumerate(values):
    joined[(place, *map(slice, np.shape(value)))] = value
  return joined
