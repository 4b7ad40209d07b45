"""The stores of a run's answers, found in MODEL_DIR or made there."""

import hashlib

from absl import logging
from etils import epath

from realm_jax.answers.building import build_store
from realm_jax.answers.distinct import DistinctAnswers
from realm_jax.answers.in_blocks import AnswersInBlocks
from realm_jax.answers.of_task import answers_of_task
from realm_jax.answers.store import AnswersError, AnswerStore
from realm_jax.corpus.store import Corpus
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning.agreement import Agreement

FOLDER = "answers"


class RunAnswers:
  """Knows which blocks contain an answer of a run's questions.

  Process 0 makes a store, where there is none of the same blocks and answers,
  and the others wait. A run that swaps in another version of its corpus makes
  one for that version, at the same step in all processes; its step waits.

  Args:
    model_dir: Directory of the run, which all processes share.
    data: Data of the run; the answers are those of all questions of its task.
    agreement: Agreement of all processes about the stores alone.
  """

  def __init__(
    self,
    model_dir: epath.PathLike,
    data: DataConfig,
    *,
    agreement: Agreement,
  ):
    self._folder = epath.Path(model_dir) / FOLDER
    self._agreement = agreement
    self._answers = answers_of_task(data)
    self._current: AnswersInBlocks | None = None

  def of(self, corpus: Corpus) -> AnswersInBlocks:
    """Returns the answers in the blocks of a corpus version.

    All processes must ask for the same versions, in the same order.

    Raises:
      AnswersError: The store cannot be made or read.
    """
    current = self._current
    if current is None or current.corpus.fingerprint != corpus.fingerprint:
      current = self._current = self._open(corpus)
    return current

  def _open(self, corpus: Corpus) -> AnswersInBlocks:
    answers = self._answers
    if not len(answers):
      return AnswersInBlocks(corpus, answers)
    key = store_key(corpus, answers)
    directory = self._folder / key[:16]

    def make() -> None:
      try:
        AnswerStore.open(directory, key)
      except AnswersError as reason:
        logging.info("Searching all blocks for the answers: %s", reason)
        build_store(directory, corpus, answers, key=key)

    self._agreement.on_process_0(f"answers {key}", make, (AnswersError,))
    store = self._agreement.on_all_processes(
      f"store {key}", lambda: AnswerStore.open(directory, key), (AnswersError,)
    )
    _report(store, directory)
    return AnswersInBlocks(corpus, answers, store)


def store_key(corpus: Corpus, answers: DistinctAnswers) -> str:
  """Returns what a store is recognised by: its blocks and answers."""
  text = f"{corpus.fingerprint} {answers.sha256}"
  return hashlib.sha256(text.encode()).hexdigest()


def _report(store: AnswerStore, directory: epath.Path) -> None:
  logging.info(
    "%d of %d distinct answers occur in some block (%s)",
    store.num_answers - store.num_not_found,
    store.num_answers,
    directory,
  )
