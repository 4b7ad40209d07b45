"""The sidecar of a worker that is not the first: it embeds what is assigned."""

import threading
import time
from collections.abc import Callable

from absl import logging
from etils import epath

from realm_jax.checkpoints.store import (
  CheckpointStore,
  UnreadableCheckpointError,
)
from realm_jax.corpus.errors import CorpusError
from realm_jax.files.local_disk.disk_full import DiskFullError
from realm_jax.generations.building.assignment import (
  Assignment,
  AssignmentReader,
)
from realm_jax.generations.building.current_builder import CurrentBuilder
from realm_jax.generations.building.generation_builder import OtherWorkError
from realm_jax.generations.building.worker import PreemptedError, WorkerNumber

# How long an assignment may differ from this worker's settings: the first
# worker, if it was killed and restarts, writes another one in this time.
_PATIENCE_SECONDS = 120.0


class Helper:
  """Embeds the shards of one worker, of whatever the first worker builds.

  Args:
    number: Number of this worker.
    builder: Builder of any version of the corpus.
    checkpoints: Checkpoints of the run.
    generations_dir: Directory of the generations.
    is_done: Function that returns whether to end when nothing is assigned.
    poll_seconds: Time between two looks at the assignment.
    stop: Event that ends it, as SIGTERM does.
    check: Function that is called regularly; an exception stops it.
    patience_seconds: How long to wait where the first worker builds with other
      settings, before this is an error.
  """

  def __init__(
    self,
    number: WorkerNumber,
    builder: CurrentBuilder,
    *,
    checkpoints: CheckpointStore,
    generations_dir: epath.PathLike,
    is_done: Callable[[], bool],
    poll_seconds: float,
    stop: threading.Event,
    check: Callable[[], None] = lambda: None,
    patience_seconds: float = _PATIENCE_SECONDS,
  ):
    self._number = number
    self._builder = builder
    self._checkpoints = checkpoints
    self._reader = AssignmentReader(generations_dir)
    self._is_done = is_done
    self._poll_seconds = poll_seconds
    self._stop = stop
    self._check = check
    self._patience_seconds = patience_seconds
    self._last_message = ""

  def run(self) -> None:
    """Helps until the event `stop`, or until it is done.

    Raises:
      OtherWorkError: The first worker has other settings.
      CheckpointError: A checkpoint does not fit the model.
    """
    refused: tuple[Assignment, float] | None = None
    while not self._stop.is_set():
      self._check()
      assigned = self._reader.read()
      if assigned is None:
        if self._is_done():
          return
        self._say(
          logging.INFO,
          f"worker {self._number}: waiting for the next generation that the "
          "first worker begins",
        )
      else:
        try:
          self._help(assigned)
        except OtherWorkError as error:
          now = time.monotonic()
          if refused is None or refused[0] != assigned:
            refused = assigned, now
          if now - refused[1] >= self._patience_seconds:
            raise
          self._say(logging.WARNING, str(error))
        except (UnreadableCheckpointError, CorpusError, DiskFullError) as error:
          what = f"cannot help with generation {assigned.step}"
          self._say(logging.WARNING, f"{what}: {error}")
        except PreemptedError:
          break
      self._stop.wait(self._poll_seconds)
    logging.info("Preempted: worker %s exits", self._number)

  def _help(self, assigned: Assignment) -> None:
    if assigned.num_workers != self._number.count:
      raise OtherWorkError(
        f"the first worker shares generation {assigned.step} among "
        f"{assigned.num_workers} workers, and this is worker {self._number}; "
        "start all with the same number of workers"
      )
    self._builder.go_to(assigned.corpus_version, assigned.corpus_fingerprint)
    builder = self._builder.get()
    retriever = builder.restore(self._checkpoints, assigned.step)
    if retriever is None:
      return
    self._last_message = ""
    builder.help(
      assigned,
      retriever,
      is_assigned=lambda: self._reader.read() == assigned,
      check=self._check_preempted,
    )

  def _check_preempted(self) -> None:
    self._check()
    if self._stop.is_set():
      raise PreemptedError

  def _say(self, level: int, message: str) -> None:
    """Logs a message once, until there is another."""
    if message != self._last_message:
      logging.log(level, "%s", message)
    self._last_message = message
