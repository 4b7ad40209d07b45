"""Which blocks a run has retrieved, written by the trainer for the builder.

    MODEL_DIR/retrieved/00000500-00000.npy   since the checkpoint before 500,
                                             by process 0

Small files beside the checkpoints, that go when those go.
"""

import re
from collections.abc import Collection

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Float, Int

from realm_jax.corpus.store import NULL_ROW, Corpus

FOLDER = "retrieved"
_NAME = re.compile(r"([0-9]{8,})-[0-9]{5}\.npy")
_RECORD = np.dtype([("id", np.int64), ("count", np.int64)])
# Ids that wait to be counted.
_MOST_WAITING = 1 << 20


class RetrievedBlocks:
  """Counts what one process of a trainer retrieves between checkpoints.

  Args:
    model_dir: the run's.
    process: this process's number.
  """

  def __init__(self, model_dir: epath.PathLike, *, process: int = 0):
    self._directory = epath.Path(model_dir) / FOLDER
    self._process = process
    self._waiting: list[np.ndarray] = []
    self._num_waiting = 0
    self._counted = np.zeros(0, np.int64), np.zeros(0, np.int64)

  def add(self, rows: Int[np.ndarray, "b k"], corpus: Corpus) -> None:
    """Counts what a step retrieved: rows of this version of the corpus."""
    self._waiting.append(corpus.block_ids[rows[rows != NULL_ROW]])
    self._num_waiting += rows.size
    if self._num_waiting > _MOST_WAITING:
      self._count()

  def _count(self) -> None:
    ids, counts = self._counted
    waiting = np.concatenate([*self._waiting, np.zeros(0, np.int64)])
    found, times = np.unique(waiting, return_counts=True)
    every, place = np.unique(np.concatenate([ids, found]), return_inverse=True)
    total = np.bincount(
      place, np.concatenate([counts, times]), minlength=len(every)
    )
    self._counted = every.astype(np.int64), total.astype(np.int64)
    self._waiting, self._num_waiting = [], 0

  def save(self, step: int, *, checkpoints: Collection[int]) -> None:
    """Writes the counts of a checkpoint, begins anew, and removes old files.

    Args:
      step: the checkpoint's.
      checkpoints: those whose files stay, beside this one's.
    """
    self._count()
    ids, counts = self._counted
    self._counted = np.zeros(0, np.int64), np.zeros(0, np.int64)
    records = np.zeros(len(ids), _RECORD)
    records["id"], records["count"] = ids, counts
    name = f"{step:08d}-{self._process:05d}.npy"
    aside = self._directory / f".{name}"
    try:
      self._directory.mkdir(parents=True, exist_ok=True)
      with aside.open("wb") as file:
        np.lib.format.write_array(file, records, allow_pickle=False)
      aside.replace(self._directory / name)
      for path in self._directory.glob(f"*-{self._process:05d}.npy"):
        match = _NAME.fullmatch(path.name)
        if match and int(match[1]) not in {*checkpoints, step}:
          path.unlink(missing_ok=True)
    except OSError as error:
      # The builder does without; training must not end for it.
      logging.warning("no counts of retrieved blocks: %s", error)


def retrieved_counts(
  model_dir: epath.PathLike, corpus: Corpus, *, until: int, decay: float
) -> Float[np.ndarray, " N"]:
  """How often each block was retrieved, the latest counting most.

  Args:
    model_dir: the run's.
    corpus: whose blocks; what it does not have is left out.
    until: the checkpoint whose generation is made; later ones do not count.
    decay: what a count is worth a checkpoint later.
  """
  counts = np.zeros(corpus.num_blocks)
  by_step: dict[int, list[epath.Path]] = {}
  directory = epath.Path(model_dir) / FOLDER
  if not directory.exists():
    return counts
  for path in directory.iterdir():
    match = _NAME.fullmatch(path.name)
    if match and int(match[1]) <= until:
      by_step.setdefault(int(match[1]), []).append(path)
  for age, step in enumerate(sorted(by_step, reverse=True)):
    for path in by_step[step]:
      try:
        with path.open("rb") as file:
          records = np.lib.format.read_array(file, allow_pickle=False)
        rows = corpus.rows_of(records["id"])
        known = rows != NULL_ROW
        weighted = decay**age * records["count"][known].astype(np.float64)
      except FileNotFoundError:
        continue  # Removed with its checkpoint.
      except (ValueError, OSError, IndexError, EOFError) as error:
        logging.warning("%s holds no counts (%r) and is left out", path, error)
        continue
      np.add.at(counts, rows[known], weighted)
  return counts
