"""The task and the files of a run, and how tasks find the files.

Tasks are registered before the corpus of the run is known. Their sources and
vocabularies read the current `TaskContext`:

    with task_context(TaskContext("corpus")):
      dataset = seqio.get_mixture_or_task("inverse_cloze").get_dataset(...)
"""

import contextlib
import contextvars
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from etils import epath

from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.inputs.batch import TaskError
from realm_jax.settings import (
  Fraction,
  NonNegativeInt,
  OfRun,
  PositiveInt,
  Range,
  Seed,
  require_valid,
)

# Settings for the padded lengths of features, which other_lengths must not set.
_LENGTHS = {
  "query": "query_length",
  "block": "block_length",
  "mask_positions": "max_masks",
  "mask_targets": "max_masks",
  "mask_weights": "max_masks",
}
# Prefix of TFDS's folder, for questions that TFDS reads.
TFDS = "tfds:"
# [CLS] word [SEP], and [CLS] [SEP] word [SEP].
QueryLength = Annotated[int, Range(least=3)]
BlockLength = Annotated[int, Range(least=4)]


@dataclasses.dataclass(frozen=True)
class TaskContext:
  """The files of a run.

  Attributes:
    corpus_dir: Corpus directory; every task uses its vocabulary.
    pretraining_corpus_dir: Corpus whose sentences are masked, while
      `corpus_dir` is searched, as in REALM with CC-News (section 4.1). Both
      must have the same vocabulary. None takes `corpus_dir`.
    question_files: Source of the questions of each split: a file of JSON Lines
      or, for a published data set, the folder of its files, one of them, or
      `tfds:` and TFDS's folder (realm_jax/inputs/published.py).
    corpus_version: Version of the corpus of the examples; None opens the
      newest.
    held_out_blocks: Number of blocks at the end of this corpus that form the
      split "validation", and are not in "train".
    unmasked_span_kinds: Kinds of salient spans that are not masked. The paper
      masks named entities and dates, but not bare numbers.
    sentence_removal_probability: Probability with which inverse cloze removes
      the sentence from its block (Lee et al. 2019, section 4). A retriever with
      random initial weights first has to learn that equal words match, and
      learns it from sentences that remain.
  """

  corpus_dir: Annotated[epath.PathLike, OfRun()]
  question_files: Mapping[str, epath.PathLike] = dataclasses.field(
    default_factory=dict
  )
  pretraining_corpus_dir: Annotated[epath.PathLike | None, OfRun()] = None
  corpus_version: NonNegativeInt | None = None
  held_out_blocks: Annotated[NonNegativeInt, OfRun()] = 0
  unmasked_span_kinds: Annotated[Sequence[str], OfRun()] = ("number",)
  sentence_removal_probability: Fraction = 0.9

  def question_file(self, split: str) -> epath.Path:
    """Returns the place of a split's questions; raises `TaskError` if none."""
    if split in self.question_files:
      return epath.Path(self.question_files[split])
    raise TaskError(
      f"there is no file of questions for the split {split!r}, only for "
      f"{', '.join(self.question_files) or 'none'}; give one (show_task "
      "--questions, or QUESTIONS or TRAIN_QUESTIONS of a run)"
    )

  @property
  def question_paths(self) -> list[str]:
    """The files and folders of questions, without the prefix `tfds:`."""
    paths = [os.fspath(path) for path in self.question_files.values()]
    return [*filter(None, (path.removeprefix(TFDS) for path in paths))]

  @functools.cached_property
  def corpus(self) -> Corpus:
    """The corpus of `corpus_dir`, memory-mapped."""
    is_only = self.pretraining_corpus_dir is None
    version = self.corpus_version if is_only else None
    return Corpus.open(self.corpus_dir, version=version)

  @functools.cached_property
  def examples(self) -> Corpus:
    """The corpus from which examples come, memory-mapped.

    Raises:
      CorpusError: Its vocabulary differs from the vocabulary of `corpus`.
    """
    if self.pretraining_corpus_dir is None:
      return self.corpus
    corpus = Corpus.open(
      self.pretraining_corpus_dir, version=self.corpus_version
    )
    corpus.require_vocabulary_of(self.corpus)
    return corpus


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(TaskContext):
  """The data of a run, independent of processes and positions.

  Attributes:
    task: Name of a seqio task.
    batch_size: Number of examples in a global batch, over all processes.
    query_length: Number of wordpieces of a query, including [CLS] and [SEP].
    block_length: Number of wordpieces of a block, including title and special
      tokens.
    split: Split of the task's source.
    task_modules: Modules that register tasks when they are imported.
    seed: Seed of the order and of the masks.
    max_masks: Number of masks of a query that are scored.
    other_lengths: Padded lengths of further features, by name. A feature
      without a length stays on the host.
    batches_ahead: Number of batches that are prepared in advance.
  """

  task: Annotated[str, OfRun("TRAINING_TASK")]
  batch_size: PositiveInt
  query_length: Annotated[QueryLength, OfRun()] = 64
  block_length: Annotated[BlockLength, OfRun()] = 288
  split: str = "train"
  task_modules: Annotated[Sequence[str], OfRun()] = ("realm_jax.tasks",)
  seed: Seed = 0
  max_masks: Annotated[PositiveInt, OfRun()] = 10
  other_lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
  batches_ahead: NonNegativeInt = 2

  def __post_init__(self) -> None:
    require_valid(self)
    for name in _LENGTHS.keys() & self.other_lengths.keys():
      raise RealmError(
        f"OTHER_LENGTHS has {name!r}, whose length is {_LENGTHS[name].upper()};"
        " set that"
      )

  @property
  def lengths(self) -> dict[str, int]:
    """Padded length of each feature, for seqio's `sequence_length`."""
    lengths = {name: getattr(self, field) for name, field in _LENGTHS.items()}
    return {**lengths, **self.other_lengths}


_CURRENT = contextvars.ContextVar[TaskContext]("task_context")


@contextlib.contextmanager
def task_context(context: TaskContext) -> Iterator[None]:
  """Makes `context` the current one for tasks inside the `with` block."""
  token = _CURRENT.set(context)
  try:
    yield
  finally:
    _CURRENT.reset(token)


def current_context() -> TaskContext:
  """Returns the run's files; raises `TaskError` outside `task_context`."""
  try:
    return _CURRENT.get()
  except LookupError:
    raise TaskError(
      "no corpus is given: this task reads the run's; build its data set "
      "inside `with task_context(TaskContext(corpus_dir, question_files)):`"
    ) from None
