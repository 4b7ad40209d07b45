"""Opens or builds the stores of a run's answers, in MODEL_DIR."""

import dataclasses

import seqio
from absl import logging
from etils import epath

from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.answers.store import (
  AnswersError,
  AnswerStore,
  build_store,
  store_key,
)
from realm_jax.corpus.store import Corpus
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import DataConfig
from realm_jax.inputs.examples import find_task
from realm_jax.partitioning.agreement import Agreement

FOLDER = "answers"
# Batches hide the cost of a call for each question.
_QUESTIONS_PER_BATCH = 64


class RunAnswers:
  """Determines which blocks contain answers to a run's questions.

  If there is no store for the same blocks and answers, process 0 builds one
  while the others wait. A run that switches to another version of its corpus
  builds a store for that version, at the same step in all processes; the step
  waits for it. The `agreement` of all processes must be used for stores only.
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
      AnswersError: The store cannot be built or read.
    """
    current = self._current
    if current is None or current.corpus.fingerprint != corpus.fingerprint:
      current = self._current = self._open(corpus)
    return current

  def _open(self, corpus: Corpus) -> AnswersInBlocks:
    answers = self._answers
    if not answers:
      return AnswersInBlocks(corpus)
    key = store_key(corpus, answers)
    directory = self._folder / key[:16]

    def make() -> None:
      try:
        AnswerStore(directory, corpus, answers)
      except AnswersError as reason:
        logging.info("Searching all blocks for the answers: %s", reason)
        build_store(directory, corpus, answers)

    self._agreement.on_process_0(f"answers {key}", make)
    store = self._agreement.on_all_processes(
      f"store {key}", lambda: AnswerStore(directory, corpus, answers)
    )
    return AnswersInBlocks(corpus, store)


def answers_of_task(data: DataConfig) -> tuple[str, ...]:
  """Returns the distinct answers, without patterns, of a task or mixture.

  Raises:
    TaskError: There is no such task, or its source cannot be read.
  """
  strings = set[str]()
  # Reads each task, because an epoch of a mixture ends with its first task.
  for task in seqio.get_subtasks(find_task(data.task, data.task_modules)):
    of_task = dataclasses.replace(
      data, task=task.name, batch_size=_QUESTIONS_PER_BATCH
    )
    for batch in stream_batches(of_task, shuffle=False, repeat=False):
      strings.update(*(question.strings for question in batch.answers))
  return tuple(sorted(strings))
