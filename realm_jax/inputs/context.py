"""What a task learns only at run time: the corpus, its words, the questions.

Tasks are registered when their module is imported, before anyone knows which
corpus they will read. Their sources and vocabularies ask for the run's
`TaskContext` when a data set is built:

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
  """The run's files.

  Attributes:
    corpus_dir: what `build_corpus` wrote; its vocabulary is every task's.
    question_files: JSON Lines of questions, by split.
    corpus_version: of the corpus, whose blocks a task may read; None takes the
      newest.
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


_CURRENT: contextvars.ContextVar[TaskContext] = contextvars.ContextVar(
  "task_context"
)


@contextlib.contextmanager
def task_context(context: TaskContext) -> Iterator[TaskContext]:
  """Makes `context` the one that tasks read, for the time of the block."""
  token = _CURRENT.set(context)
  try:
    yield context
  finally:
    _CURRENT.reset(token)


def current_context() -> TaskContext:
  """The run's files; raises `TaskError` outside `task_context`."""
  try:
    return _CURRENT.get()
  except LookupError:
    raise TaskError(
      "no corpus is given: this task reads the run's; build its data set "
      "inside `with task_context(TaskContext(corpus_dir, question_files)):`"
    ) from None
