"""What a run reads: its task and its files, and how tasks reach the files.

Tasks are registered before the corpus of the run is known. Their sources and
vocabularies ask for the `TaskContext`:

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

# The settings that pad features, whose own names pad none.
_LENGTHS = {
  "query": "query_length",
  "block": "block_length",
  "mask_positions": "max_masks",
  "mask_targets": "max_masks",
  "mask_weights": "max_masks",
}
# What is before TFDS's folder, where questions are TFDS's.
TFDS = "tfds:"
# [CLS] word [SEP], and [CLS] [SEP] word [SEP].
QueryLength = Annotated[int, Range(least=3)]
BlockLength = Annotated[int, Range(least=4)]


@dataclasses.dataclass(frozen=True)
class TaskContext:
  """The files of a run.

  Attributes:
    corpus_dir: Corpus directory; every task uses its vocabulary.
    pretraining_corpus_dir: Corpus whose sentences are learnt from, while that
      of `corpus_dir` is searched, as REALM did with CC-News (section 4.1). Both
      must have the same vocabulary. None takes `corpus_dir`.
    question_files: Where the questions of each split are: a file of JSON Lines,
      or for a published data set the folder of its files, one of these, or
      TFDS's folder after `tfds:` (realm_jax/inputs/published.py).
    corpus_version: Version of the corpus that examples come from; None opens
      the newest.
    held_out_blocks: Number of blocks at the end of that corpus that are not in
      the split "train", but in "validation".
    unmasked_span_kinds: Kinds of salient spans that are not masked. The paper
      masks named entities and dates, and no bare numbers.
    sentence_removal_probability: How often inverse cloze removes the sentence
      from its block (Lee et al. 2019, section 4). A retriever with random
      initial weights first has to learn that the same words match, and learns
      it from sentences that remain.
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

  @property
  def question_paths(self) -> list[str]:
    """The files and folders of questions, without what says TFDS reads them."""
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
    """The corpus that examples come from, memory-mapped.

    Raises:
      CorpusError: It has another vocabulary than `corpus`.
    """
    if self.pretraining_corpus_dir is None:
      return self.corpus
    found = Corpus.open(
      self.pretraining_corpus_dir, version=self.corpus_version
    )
    found.require_vocabulary_of(self.corpus)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(TaskContext):
  """The data of a run, whichever processes read them and from where on.

  Attributes:
    task: Name of a seqio task.
    batch_size: Examples in a global batch, which all processes share.
    query_length: Wordpieces of a query, [CLS] and [SEP] included.
    block_length: Wordpieces of a block, its title and specials included.
    split: Split of the task's source.
    task_modules: Modules that register tasks when they are imported.
    seed: Seed of the order and of the masks.
    max_masks: Number of masks of a query that are scored.
    other_lengths: Padded lengths of further features, by name. A feature that
      has none stays on the host.
    batches_ahead: Number of batches that are prepared before they are needed.
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

  @property
  def lengths(self) -> dict[str, int]:
    """The padded length of each feature, seqio's `sequence_length`."""
    own = {name: getattr(self, field) for name, field in _LENGTHS.items()}
    return {**own, **self.other_lengths}


_CURRENT = contextvars.ContextVar[TaskContext]("task_context")


@contextlib.contextmanager
def task_context(context: TaskContext) -> Iterator[None]:
  """Makes `context` the one that tasks read inside the `with` block."""
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
