"""Questions to a run: retrieval, and the answers of its reader."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from realm_jax.errors import RealmError

# It registers the answers of a reader that points at spans.
from realm_jax.evaluation import span_answers as span_answers
from realm_jax.evaluation.answered import Answered, answer_from_blocks
from realm_jax.evaluation.run import TrainedRun
from realm_jax.indexes.protocol import SearchError


def ask(
  run: TrainedRun,
  questions: Sequence[str],
  *,
  answer: str | None = None,
  token_ids: Int32[np.ndarray, "n q"] | None = None,
) -> list[Answered]:
  """Answers questions from the blocks that are retrieved for them.

  Args:
    run: Run of open QA, whose configuration says how many blocks are read.
    questions: Questions, any number.
    answer: Answer to look for besides, in `Answered.given`.
    token_ids: Their tokens, where they are encoded already.

  Raises:
    SearchError: More blocks are to be read than are retrieved.
    RealmError: A question has no words, or the blocks to read depend on its
      answers.
  """
  if run.config.candidates == "gold":
    raise RealmError(
      'CANDIDATES = "gold" reads the blocks that contain an answer, which is '
      "not known here; it is for `realm_jax.evaluate`"
    )
  require_answering(run)
  answered, config = [], run.config
  if token_ids is None:
    token_ids = run.encode(questions)
  for start in range(0, len(questions), run.max_batch):
    own = slice(start, start + run.max_batch)
    found = run.search(token_ids[own], config.num_searched)
    places = np.indices(found.rows.shape)[1][:, : config.num_read]
    answered += answer_from_blocks(
      run.require_reader(),
      run,
      questions[own],
      token_ids[own],
      found,
      places,
      answer,
    )
  return answered


def require_answering(run: TrainedRun) -> None:
  """Checks what `ask` needs, and loads the snapshot.

  Raises:
    CheckpointError: The run has no reader.
    SearchError: More blocks are to be read than are retrieved.
    SnapshotError: The snapshot is missing or damaged.
  """
  run.require_reader()
  num_blocks, config = run.snapshot.num_blocks, run.config
  number = min(config.num_searched, num_blocks)
  if config.num_read > number:
    raise SearchError(
      f"num_read={config.num_read} of num_searched={number} blocks; choose "
      f"NUM_READ from 1 to {number}, or raise NUM_SEARCHED (the corpus has "
      f"{num_blocks} blocks)"
    )
