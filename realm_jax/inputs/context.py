"""The files of a run, which tasks read only when a data set is built.

Tasks are registered when their module is imported, before the corpus of the
run is known. Their sources and vocabularies ask for the `TaskContext`:

    with task_context(TaskContext("corpus")):
      dataset = seqio.get_mixture_or_task("inverse_cloze").get_dataset(...)
"""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from etils import epath

from realm_jax.corpus.store import Corpus
from realm_jax.settings import Fraction, NonNegativeInt


class TaskError(ValueError):
  """A task that is missing, or cannot do what was asked of it."""


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
      TFDS's folder after `tfds:` (realm_jax/inputs/questions/published.py).
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

  corpus_dir: epath.PathLike
  question_files: Mapping[str, epath.PathLike] = dataclasses.field(
    default_factory=dict
  )
  pretraining_corpus_dir: epath.PathLike | None = None
  corpus_version: NonNegativeInt | None = None
  held_out_blocks: NonNegativeInt = 0
  unmasked_span_kinds: Sequence[str] = ("number",)
  sentence_removal_probability: Fraction = 0.9

  @functools.cached_property
  def corpus(self) -> Corpus:
    """The corpus of `corpus_dir`, memory-mapped."""
    is_one = self.pretraining_corpus_dir is None
    version = self.corpus_version if is_one else None
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
