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
from collections.abc import Iterator, Mapping

from etils import epath

from realm_jax.corpus.store import Corpus


class TaskError(ValueError):
  """A task that is missing, or cannot do what was asked of it."""


@dataclasses.dataclass(frozen=True)
class TaskContext:
  """The files of a run.

  Attributes:
    corpus_dir: Corpus directory; every task uses its vocabulary.
    question_files: Where the questions of each split are: a file of JSON Lines,
      or for a published data set the folder of its files, one of these, or
      TFDS's folder after `tfds:` (realm_jax/inputs/questions/published.py).
    corpus_version: Version of the corpus; None opens the newest.
  """

  corpus_dir: epath.PathLike
  question_files: Mapping[str, epath.PathLike] = dataclasses.field(
    default_factory=dict
  )
  corpus_version: int | None = None

  @functools.cached_property
  def corpus(self) -> Corpus:
    """The corpus of `corpus_dir`, memory-mapped."""
    return Corpus.open(self.corpus_dir, version=self.corpus_version)


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
