"""Published data sets of questions, in the forms in which they are published.

A data set names its forms, files or TFDS, and how many questions each split
has. Whoever runs a task says where they are, in `question_files` of the split:

    data/webquestions            the folder of the files
    data/trec/large2470-test.tsv one of them, if the folder has several forms
    tfds:, tfds:/data/tfds       TFDS's own folder, or another
"""

import collections
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging
from etils import epath
from jaxtyping import Bool

from realm_jax.files import prepared_tfds
from realm_jax.inputs.config import current_context
from realm_jax.inputs.questions.checks import QuestionChecks
from realm_jax.inputs.questions.forms import (
  TRAIN_AND_DEV,
  Files,
  Tfds,
  parts_of,
)
from realm_jax.inputs.questions.question import (
  Question,
  QuestionFileError,
  QuestionRecords,
  QuestionSource,
)
from realm_jax.text.answers import AnswerKind

_TFDS = "tfds:"
_NUM_BUCKETS = 100_000


def is_development(questions: Sequence[str]) -> Bool[np.ndarray, " n"]:
  """Returns which training questions are in the development set.

  It is the tenth whose FarmHash bucket, of 100,000, is a multiple of 10, as in
  Google's `language/orqa/preprocessing/create_data_splits.py`. The text is
  hashed as published, without any normalization.
  """
  buckets = tf.strings.to_hash_bucket_fast(
    tf.constant(questions, tf.string), _NUM_BUCKETS
  )
  return buckets.numpy() % 10 == 0


class LoadedQuestions(QuestionRecords):
  """Questions in memory."""

  def __init__(self, questions: Sequence[Question], *, answer_kind: AnswerKind):
    checks = QuestionChecks(answer_kind)
    for question in questions:
      checks.note(*question)
    ids = collections.Counter(question.question_id for question in questions)
    checks.note_repeated_ids([name for name, n in ids.items() if n > 1])
    super().__init__(checks)
    self._questions = questions

  def __len__(self) -> int:
    return len(self._questions)

  def questions(self, indices: Sequence[int]) -> list[Question]:
    return [self._questions[index] for index in indices]


class PublishedSource(QuestionSource):
  """The questions of a published data set.

  The splits are "train", "dev", "test" and, where the development set is taken
  from the training questions, "train+dev", which has all of these.

  Attributes:
    sizes: Published number of questions of splits. They are checked; a split
      that is absent has no published number.

  Args:
    name: Name of the data set, for messages.
    sizes: Published number of questions of splits.
    files: Forms in which files are published, the preferred one first.
    tfds: TFDS's form, if it has one.
    get: Command that fetches the files.
    answer_kind: Whether the answers are strings or regular expressions.
  """

  def __init__(
    self,
    name: str,
    *,
    sizes: Mapping[str, int],
    files: Sequence[Files],
    tfds: Tfds | None = None,
    get: str,
    answer_kind: AnswerKind = "string",
  ):
    super().__init__(
      splits=("train", "dev", "test", TRAIN_AND_DEV), answer_kind=answer_kind
    )
    self._name, self.sizes = name, sizes
    self._files, self._tfds, self._get = files, tfds, get

  def __str__(self) -> str:
    return f"{self._name} ({dict(current_context().question_files)})"

  def open(self, split: str) -> LoadedQuestions:
    """Reads the questions of a split.

    Raises:
      QuestionFileError: They are not there, or not as many as published.
    """
    place = current_context().question_files.get(split)
    if place is None:
      raise QuestionFileError(
        f"nothing says where the {split!r} questions of {self._name} are; "
        f"give a place for this split (QUESTIONS): {self._wanted(split)}"
      )
    if os.fspath(place).startswith(_TFDS):
      form, parts, questions = self._from_tfds(os.fspath(place), split)
    else:
      form, parts, questions = self._from_files(epath.Path(place), split)
    sizes = form.sizes or self.sizes
    is_divided = parts == ["train"] and "dev" not in form.names
    published = TRAIN_AND_DEV if is_divided else split
    self._require_size(sizes, published, questions, place=place)
    if is_divided and split != TRAIN_AND_DEV:
      is_dev = is_development([question.question for question in questions])
      chosen = np.flatnonzero(is_dev == (split == "dev"))
      questions = [questions[index] for index in chosen]
      self._require_size(sizes, split, questions, place=place)
    logging.info(
      "%s, %s: %d questions from %s", self._name, split, len(questions), place
    )
    return LoadedQuestions(questions, answer_kind=self.answer_kind)

  def _require_size(
    self,
    sizes: Mapping[str, int],
    split: str,
    questions: Sequence[Question],
    *,
    place: epath.PathLike,
  ) -> None:
    """Raises `QuestionFileError` unless as many are there as published."""
    size = sizes.get(split)
    if split == TRAIN_AND_DEV and size is None and "train" in sizes:
      size = sizes["train"] + sizes["dev"]
    if size is None or len(questions) == size:
      return
    own = "open_qa_regex" if self.answer_kind == "regex" else "open_qa"
    raise QuestionFileError(
      f"{os.fspath(place)} has {len(questions):,} questions for the split "
      f"{split!r} of {self._name}, where {size:,} are published: the data are "
      f"partial, changed, or of another set. Fetch them again ({self._get}). "
      "For a part on purpose, write your questions to JSON Lines, and train on "
      f"the task {own}"
    )

  def _forms(self, split: str) -> dict[Files, list[str]]:
    """Returns the forms that have a split, each with the parts it needs."""
    forms = {form: parts_of(form, split) for form in self._files}
    return {
      form: parts
      for form, parts in forms.items()
      if form.names.keys() >= set(parts)
    }

  def _wanted(self, split: str) -> str:
    """Describes what may be there, and how to get it."""
    forms = [
      " and ".join(name for part in parts for name in form.names[part])
      for form, parts in self._forms(split).items()
    ]
    text = f"the folder of {'; or of '.join(forms)} ({self._get})"
    if self._tfds:
      text += (
        f"; or 'tfds:', TFDS's {self._tfds.builder}, prepared with "
        f"{prepared_tfds.command(self._tfds.builder)}"
      )
    return text

  def _from_tfds(
    self, place: str, split: str
  ) -> tuple[Tfds, list[str], list[Question]]:
    form = self._tfds
    if form is None:
      raise QuestionFileError(
        f"TFDS has no {self._name}; give {self._wanted(split)}"
      )
    parts = parts_of(form, split)
    directory = place.removeprefix(_TFDS) or None
    questions = []
    for part in parts:
      records = prepared_tfds.read(form.builder, form.names[part], directory)
      try:
        for number, record in enumerate(records, start=1):
          questions.append(_named(form.read(record), form.names[part], number))
      except prepared_tfds.NotPreparedError as error:
        raise QuestionFileError(str(error)) from error
    return form, parts, questions

  def _from_files(
    self, place: epath.Path, split: str
  ) -> tuple[Files, list[str], list[Question]]:
    form = self._form_at(place, split)
    parts = parts_of(form, split)
    folder = place if place.is_dir() else place.parent
    paths = {
      name: found
      for part in parts
      for name, found in form.paths(folder, part).items()
    }
    if missing := [name for name, found in paths.items() if not found]:
      raise QuestionFileError(
        f"{folder} has only some of the {split!r} questions of {self._name}: "
        f"{', '.join(missing)} of {', '.join(paths)} is missing; {self._get}"
      )
    files = [path for found in paths.values() for path in found]
    questions = [question for path in files for question in _read(form, path)]
    return form, parts, questions

  def _form_at(self, place: epath.Path, split: str) -> Files:
    """Returns the form of the files at a place, a folder or one of them."""

    def is_there(form: Files, part: str) -> bool:
      if place.is_dir():
        return any(form.paths(place, part).values())
      return place.exists() and form.has_file(place.name, part)

    found = [
      form
      for form, parts in self._forms(split).items()
      if any(is_there(form, part) for part in parts)
    ]
    if not found:
      raise QuestionFileError(
        f"no {split!r} questions of {self._name} at {place}; wanted "
        f"{self._wanted(split)}"
      )
    if len({str(form.sizes) for form in found}) > 1:
      raise QuestionFileError(
        f"{place} has several forms of {self._name}: "
        f"{'; '.join(map(str, found))}. Name a file instead of the folder"
      )
    return found[0]


def _read(form: Files, path: epath.Path) -> Iterator[Question]:
  """Yields the questions of a file, each with an id.

  Raises:
    QuestionFileError: The file is not in this form.
  """
  try:
    for number, question in enumerate(form.read(path), start=1):
      yield _named(question, path.stem, number)
  except (AttributeError, LookupError, TypeError, UnicodeError) as error:
    raise QuestionFileError(
      f"{path} is not in the published format: {error!r}"
    ) from error


def _named(question: Question, part: str, number: int) -> Question:
  """Returns the question with an id, that of its place if it has no other."""
  if question.question_id:
    return question
  return question._replace(question_id=f"{part}:{number}")
