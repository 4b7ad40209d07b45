"""The decisions that all processes of a run must take alike.

Nothing else in the loop decides these by itself. With several processes they
have to be agreed on before the step that they concern is dispatched.
"""

import threading
from typing import NamedTuple, Protocol, runtime_checkable


class AfterStep(NamedTuple):
  """Whether to save a checkpoint, and to end the run, which was preempted."""

  save: bool
  stop: bool


@runtime_checkable
class Decisions(Protocol):
  """Decides for all processes of a run, each of which says what it knows."""

  def generation(self, step: int, newest: int | None) -> int | None:
    """Returns the generation to switch to at a step, None to keep the current.

    `newest` is the newest generation that this process has loaded.
    """
    ...

  def index_crashed(self, step: int, crashed: bool) -> bool:
    """Returns whether the index of a step has crashed in any process."""
    ...

  def shape_bucket(self, step: int, bucket: int) -> int:
    """Returns the shape bucket of a step, which holds every process's rows.

    `bucket` is the smallest that holds this process's rows.
    """
    ...

  def after_step(self, step: int) -> AfterStep:
    """Returns what to do once `step` steps are done."""
    ...

  def stop_requested(self) -> bool:
    """Whether a run that waits, between two steps, should give up waiting."""
    ...


class LocalDecisions:
  """Decisions of a run that has one process; SIGTERM sets `preempted`."""

  def __init__(
    self, preempted: threading.Event, *, num_steps: int, save_every_steps: int
  ):
    self._preempted = preempted
    self._num_steps = num_steps
    self._save_every_steps = save_every_steps

  def generation(self, step: int, newest: int | None) -> int | None:
    return newest

  def index_crashed(self, step: int, crashed: bool) -> bool:
    return crashed

  def shape_bucket(self, step: int, bucket: int) -> int:
    return bucket

  def after_step(self, step: int) -> AfterStep:
    stop = self.stop_requested()
    is_due = step % self._save_every_steps == 0 or step == self._num_steps
    return AfterStep(save=is_due or stop, stop=stop)

  def stop_requested(self) -> bool:
    return self._preempted.is_set()
