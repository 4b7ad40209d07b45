"""Published data sets of questions, in their published forms.

A data set declares its forms (files or TFDS), and the number of questions in
each split. A run gives their location as `question_files` of the split:

    data/webquestions            the folder of the files
    data/trec/large2470-test.tsv one of them, if the folder has several forms
    tfds:, tfds:/data/tfds       TFDS's own folder, or another
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from etils import epath

from realm_jax.answers.match import AnswerKind
from realm_jax.inputs import seqio_rows
from realm_jax.inputs.config import TFDS, TaskError, current_context
from realm_jax.inputs.question_files import Question, QuestionRecords
from realm_jax.inputs.questions import QuestionSource

# All training questions, if the published files have no development set.
TRAIN_AND_DEV = "train+dev"
_MALFORMED = (AttributeError, LookupError, TypeError, UnicodeError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
  """A form of a data set: files of one folder.

  Attributes:
    names: Names of each split's files, in order, where `*` stands for any text.
      Without "dev", a tenth of "train" is the development set.
    read: Function that reads one file.
    sizes: Number of questions in each split, if different from the data set's.
  """

  names: Mapping[str, Sequence[str]]
  read: Callable[[epath.Path], Iterable[Question]]
  sizes: Mapping[str, int] | None = None

  def parts(self, split: str) -> list[str]:
    """Returns the parts with the questions of a split, if any."""
    parts = [split if split == "test" else "train"]
    if "dev" in self.names:
      parts = ["train", "dev"] if split == TRAIN_AND_DEV else [split]
    if not self.names.keys() >= {*parts}:
      return []
    return [name for part in parts for name in self.names[part]]


def question_of_record(record: Mapping[str, Any]) -> Question:
  """Makes a question from a TFDS record, a tree of NumPy values.

  Answers are texts, or have the fields of SQuAD or TriviaQA.
  """
  answers = record["answers"] if "answers" in record else record["answer"]
  if isinstance(answers, Mapping) and "aliases" in answers:
    answers = [answers["value"].strip(), *map(bytes.strip, answers["aliases"])]
  elif isinstance(answers, Mapping):
    answers = answers["text"]
  texts = dict.fromkeys(answer.decode() for answer in answers if answer)
  name = record.get("id", record.get("question_id", b""))
  return Question(record["question"].decode(), [*texts], name.decode())


class PublishedSource(QuestionSource):
  """The questions of a published data set.

  The splits are "train", "dev" and "test". If the development set is taken from
  the training questions, "train+dev" has all of them.

  Args:
    name: Name of the data set, for messages.
    sizes: Published numbers of questions by split, which are checked. A split
      without a published number is not.
    files: Forms of the published files, the preferred one first.
    tfds: TFDS's builder, with its configuration, if it has one.
    tfds_test: TFDS's name of the test set.
    get: Command that fetches the files.
    answer_kind: Whether the answers are strings or regular expressions.
  """

  def __init__(
    self,
    name: str,
    *,
    sizes: Mapping[str, int],
    files: Sequence[Form],
    tfds: str | None = None,
    tfds_test: str = "validation",
    get: str,
    answer_kind: AnswerKind = "string",
  ):
    super().__init__(
      splits=("train", "dev", "test", TRAIN_AND_DEV), answer_kind=answer_kind
    )
    self._name, self.sizes = name, sizes
    self._files, self._get = files, get
    self._tfds, self._tfds_test = tfds, tfds_test

  def __str__(self) -> str:
    return f"{self._name} ({dict(current_context().question_files)})"

  def open(self, split: str) -> QuestionRecords:
    """Reads the questions of a split.

    Raises:
      TaskError: The questions are missing, or their number is not the published
        one.
      InputError: TFDS has not prepared them.
    """
    place = current_context().question_files.get(split)
    if place is None:
      raise TaskError(
        f"nothing says where the {split!r} questions of {self._name} are; "
        f"give a place for this split (QUESTIONS): {self._wanted(split)}"
      )
    place = os.fspath(place)
    sizes, is_divided = self.sizes, False
    if place.startswith(TFDS):
      questions = self._from_tfds(place.removeprefix(TFDS), split)
    else:
      form, questions = self._from_files(epath.Path(place), split)
      sizes, is_divided = form.sizes or sizes, "dev" in form.names
    if not is_divided and split != "test":
      self._require_size(sizes, TRAIN_AND_DEV, questions, place)
      if split != TRAIN_AND_DEV:
        # The tenth whose FarmHash bucket is a multiple of 10, as in Google's
        # `language/orqa/preprocessing/create_data_splits.py`, is "dev". The
        # text is hashed as published, without any normalization.
        texts = tf.constant([one.question for one in questions], tf.string)
        buckets = tf.strings.to_hash_bucket_fast(texts, 100_000).numpy()
        is_own = (buckets % 10 == 0) == (split == "dev")
        questions = [*itertools.compress(questions, is_own)]
    self._require_size(sizes, split, questions, place)
    logging.info(
      "%s, %s: %d questions from %s", self._name, split, len(questions), place
    )
    return QuestionRecords(questions, self.answer_kind)

  def _require_size(
    self,
    sizes: Mapping[str, int],
    split: str,
    questions: Sequence[Question],
    place: str,
  ) -> None:
    """Raises a `TaskError` unless the number of questions is as published."""
    size = sizes.get(split)
    if split == TRAIN_AND_DEV and size is None and "train" in sizes:
      size = sizes["train"] + sizes["dev"]
    if size is None or len(questions) == size:
      return
    task = "open_qa_regex" if self.answer_kind == "regex" else "open_qa"
    raise TaskError(
      f"{place} has {len(questions):,} questions for the split "
      f"{split!r} of {self._name}, where {size:,} are published: the data are "
      f"partial, changed, or of another set. Fetch them again ({self._get}). "
      "For a part on purpose, write your questions to JSON Lines, and train on "
      f"the task {task}"
    )

  def _wanted(self, split: str) -> str:
    """Describes the forms of a data set, and how to get them."""
    forms = (" and ".join(form.parts(split)) for form in self._files)
    text = f"the folder of {'; or of '.join(filter(None, forms))} ({self._get})"
    if self._tfds:
      text += (
        f"; or 'tfds:', TFDS's {self._tfds}, prepared with "
        f"{seqio_rows.preparation(self._tfds)}"
      )
    return text

  def _from_tfds(self, directory: str, split: str) -> list[Question]:
    if self._tfds is None:
      raise TaskError(f"TFDS has no {self._name}; give {self._wanted(split)}")
    part = self._tfds_test if split == "test" else "train"
    records = seqio_rows.read_prepared(self._tfds, part, directory or None)
    return list(_with_ids(map(question_of_record, records), part))

  def _from_files(
    self, place: epath.Path, split: str
  ) -> tuple[Form, list[Question]]:
    """Reads the files of the form that a folder or a file has."""
    folder = place if place.is_dir() else place.parent
    matches: list[tuple[Form, dict[str, list[epath.Path]]]] = []
    for form in self._files:
      paths = {name: sorted(folder.glob(name)) for name in form.parts(split)}
      there = [path for matched in paths.values() for path in matched]
      if there if place == folder else place in there:
        matches.append((form, paths))
    if not matches:
      raise TaskError(
        f"no {split!r} questions of {self._name} at {place}; wanted "
        f"{self._wanted(split)}"
      )
    if len({str(form.sizes) for form, _ in matches}) > 1:
      raise TaskError(
        f"{place} has several forms of {self._name}: "
        f"{'; '.join(', '.join(paths) for _, paths in matches)}. Name a "
        "file instead of the folder"
      )
    form, paths = matches[0]
    if missing := [name for name, matched in paths.items() if not matched]:
      raise TaskError(
        f"{folder} has only some of the {split!r} questions of {self._name}: "
        f"{', '.join(missing)} of {', '.join(paths)} is missing; {self._get}"
      )
    questions: list[Question] = []
    for path in (path for matched in paths.values() for path in matched):
      try:
        questions += _with_ids(form.read(path), path.stem)
      except _MALFORMED as error:
        raise TaskError(
          f"{path} is not in the published format: {error!r}"
        ) from error
    return form, questions


def _with_ids(questions: Iterable[Question], part: str) -> Iterator[Question]:
  """Uses the position in a part as the id of questions without one."""
  for number, question in enumerate(questions, start=1):
    name = question.question_id or f"{part}:{number}"
    yield question._replace(question_id=name)
