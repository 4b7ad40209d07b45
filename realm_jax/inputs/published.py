"""Published data sets of questions, in the forms in which they are published.

A data set names its forms, files or TFDS, and how many questions each split
has. Whoever runs a task says where they are, in `question_files` of the split:

    data/webquestions            the folder of the files
    data/trec/large2470-test.tsv one of them, if the folder has several forms
    tfds:, tfds:/data/tfds       TFDS's own folder, or another
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from etils import epath
from jaxtyping import Bool

from realm_jax.corpus import seqio_rows
from realm_jax.inputs.config import current_context
from realm_jax.inputs.questions import (
  Question,
  QuestionFileError,
  QuestionRecords,
  QuestionSource,
  read_json_lines,
  read_question,
)
from realm_jax.storage.json_files import JsonValue
from realm_jax.text.answers import AnswerKind

# All training questions, where published files do not set a tenth aside.
TRAIN_AND_DEV = "train+dev"
_TFDS = "tfds:"
_NUM_BUCKETS = 100_000


def distinct(answers: list[str]) -> list[str]:
  """Returns the answers in their order, each once."""
  return list(dict.fromkeys(answers))


def json_lines(path: epath.Path) -> Iterator[Question]:
  """Reads lines of `{"question": …, "answer": […]}`, as of NQ-open and DrQA.

  An empty list of answers is kept, as published.
  """

  def to_question(fields: Mapping[str, JsonValue]) -> Question:
    if fields.get("answer") == []:
      return Question(str(fields["question"]), [])
    return read_question(fields)

  return read_json_lines(path, to_question)


def json_file(path: epath.Path) -> Any:
  """Returns the contents of a JSON file.

  Raises:
    QuestionFileError: It is not JSON, as a download that broke off.
  """
  try:
    return json.loads(path.read_text())
  except ValueError as error:
    raise QuestionFileError(f"{path} is not JSON: {error}") from error


def squad(path: epath.Path) -> Iterator[Question]:
  """Reads SQuAD's format, version 1.1: the questions of all paragraphs."""
  for article in json_file(path)["data"]:
    for paragraph in article["paragraphs"]:
      for entry in paragraph["qas"]:
        answers = [answer["text"] for answer in entry["answers"]]
        yield Question(entry["question"], distinct(answers), entry["id"])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Files:
  """A form of a data set: files of one folder.

  Attributes:
    names: Names of each split's files, in order; `*` stands for any text.
      Without "dev", a tenth of "train" is the development set.
    read: Function that reads one file.
    sizes: Number of questions in each split, if it is not the data set's.
  """

  names: Mapping[str, Sequence[str]]
  read: Callable[[epath.Path], Iterable[Question]]
  sizes: Mapping[str, int] | None = None

  def __str__(self) -> str:
    return ", ".join(name for part in self.names.values() for name in part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tfds:
  """A form of a data set: the records of a builder of TFDS.

  Attributes:
    builder: Name of the builder, with its configuration.
    names: TFDS's name of each split. Without "dev", a tenth of "train" is the
      development set.
    read: Function that makes a question of a record, a tree of numpy values.
  """

  builder: str
  names: Mapping[str, str]
  read: Callable[[Mapping[str, Any]], Question]
  sizes: Mapping[str, int] | None = None


def _parts_of(form: Files | Tfds, split: str) -> list[str]:
  """Returns the published parts that have the questions of a split."""
  if "dev" in form.names:
    return ["train", "dev"] if split == TRAIN_AND_DEV else [split]
  return [split if split == "test" else "train"]


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

  def open(self, split: str) -> QuestionRecords:
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
    place = os.fspath(place)
    if place.startswith(_TFDS):
      form, questions = self._from_tfds(place.removeprefix(_TFDS), split)
    else:
      form, questions = self._from_files(epath.Path(place), split)
    sizes, is_divided = form.sizes or self.sizes, "dev" not in form.names
    if is_divided and split != "test":
      self._require_size(sizes, TRAIN_AND_DEV, questions, place)
      if split != TRAIN_AND_DEV:
        is_dev = is_development([question.question for question in questions])
        chosen = np.flatnonzero(is_dev == (split == "dev")).tolist()
        questions = [questions[index] for index in chosen]
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
    """Raises `QuestionFileError` unless as many are there as published."""
    size = sizes.get(split)
    if split == TRAIN_AND_DEV and size is None and "train" in sizes:
      size = sizes["train"] + sizes["dev"]
    if size is None or len(questions) == size:
      return
    own = "open_qa_regex" if self.answer_kind == "regex" else "open_qa"
    raise QuestionFileError(
      f"{place} has {len(questions):,} questions for the split "
      f"{split!r} of {self._name}, where {size:,} are published: the data are "
      f"partial, changed, or of another set. Fetch them again ({self._get}). "
      "For a part on purpose, write your questions to JSON Lines, and train on "
      f"the task {own}"
    )

  def _wanted(self, split: str) -> str:
    """Describes what may be there, and how to get it."""
    forms = [" and ".join(names) for names in self._forms(split).values()]
    text = f"the folder of {'; or of '.join(forms)} ({self._get})"
    if self._tfds:
      text += (
        f"; or 'tfds:', TFDS's {self._tfds.builder}, prepared with "
        f"{seqio_rows.preparation(self._tfds.builder)}"
      )
    return text

  def _forms(self, split: str) -> dict[Files, list[str]]:
    """Returns the forms that have a split, each with the files of it."""
    parts = {form: _parts_of(form, split) for form in self._files}
    return {
      form: [name for part in parts[form] for name in form.names[part]]
      for form in self._files
      if form.names.keys() >= {*parts[form]}
    }

  def _from_tfds(
    self, directory: str, split: str
  ) -> tuple[Tfds, list[Question]]:
    form = self._tfds
    if form is None:
      raise QuestionFileError(
        f"TFDS has no {self._name}; give {self._wanted(split)}"
      )
    questions = []
    for part in _parts_of(form, split):
      name = form.names[part]
      records = seqio_rows.read_prepared(form.builder, name, directory or None)
      try:
        questions += _with_ids(map(form.read, records), name)
      except seqio_rows.NotPreparedError as error:
        raise QuestionFileError(str(error)) from error
    return form, questions

  def _from_files(
    self, place: epath.Path, split: str
  ) -> tuple[Files, list[Question]]:
    """Reads the files of the form that a folder has, or that a file is of."""
    is_folder = place.is_dir()
    folder = place if is_folder else place.parent
    found: dict[Files, dict[str, list[epath.Path]]] = {}
    for form, names in self._forms(split).items():
      paths = {name: sorted(folder.glob(name)) for name in names}
      of_form = [path for there in paths.values() for path in there]
      if of_form if is_folder else place in of_form:
        found[form] = paths
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
    form, paths = next(iter(found.items()))
    if missing := [name for name, there in paths.items() if not there]:
      raise QuestionFileError(
        f"{folder} has only some of the {split!r} questions of {self._name}: "
        f"{', '.join(missing)} of {', '.join(paths)} is missing; {self._get}"
      )
    questions = []
    for path in itertools.chain.from_iterable(paths.values()):
      try:
        questions += _with_ids(form.read(path), path.stem)
      except (AttributeError, LookupError, TypeError, UnicodeError) as error:
        raise QuestionFileError(
          f"{path} is not in the published format: {error!r}"
        ) from error
    return form, questions


def _with_ids(questions: Iterable[Question], part: str) -> list[Question]:
  """Gives questions that have no id that of their place in a part."""
  return [
    question
    if question.question_id
    else question._replace(question_id=f"{part}:{number}")
    for number, question in enumerate(questions, start=1)
  ]
