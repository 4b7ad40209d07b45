"""Decisions on which all processes of a run must agree.

All of them are made here. The hosts decide about a step before it is
dispatched, while the devices compute the previous step. Flags that the step
itself reduces would need no exchange, but are read only after the steps that
have already been dispatched. This would be too late for a SIGTERM with a grace
period of 30 s and steps of 20 s.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from realm_jax.partitioning.agreement import Agreement


class StepDecision(NamedTuple):
  """A decision about a step, the same in all processes.

  Attributes:
    load: Snapshot that all processes should load.
    snapshot: The same snapshot, once all have loaded it: the next step may use
      it.
    refused: Whether a process cannot use the snapshot, so that process 0 should
      offer another one.
    stop: Whether the run, which was preempted, saves and ends after this step.
    abandoned: Whether a process gives up the step, so that no process runs it.
    metrics: Means of the hosts' metrics.
  """

  load: int | None
  snapshot: int | None
  refused: bool
  stop: bool
  abandoned: bool
  metrics: dict[str, float]


class Decisions:
  """Makes the decisions for all processes of a run, from facts of each.

  Args:
    preempted: Event that SIGTERM sets, in any process.
    check: Function that is called about once a second while the loop waits; an
      exception ends the run.

  Attributes:
    loop: Decisions that the loop's own thread waits for; there are few.
    last: What was decided last about a step.
    preempted_anywhere: Event that SIGTERM sets soon, in whichever process.
  """

  def __init__(
    self,
    preempted: threading.Event,
    *,
    num_steps: int,
    save_every_steps: int,
    check: Callable[[], None] = lambda: None,
  ):
    self._preempted = preempted
    self._check = check
    self._num_steps = num_steps
    self._save_every_steps = save_every_steps
    self.loop = Agreement("loop", while_waiting=self.stop_requested)
    self.last: StepDecision | None = None
    self.preempted_anywhere = self.loop.stop_event(preempted)
    # A process that waits for others can report that it was preempted.
    self._steps = Agreement(
      "steps", while_waiting=self.preempted_anywhere.is_set
    )
    # Step after which the run ends, if it was preempted.
    self._last_step: int | None = None

  def of_step(
    self,
    step: int,
    *,
    snapshot: int | None,
    refused: int | None = None,
    abandoned: bool = False,
    metrics: Mapping[str, float],
  ) -> StepDecision:
    """Decides about a step, in the retrieval thread.

    The snapshot that this process could swap in, and the one that it cannot
    use, come from `IndexSchedule.offer`.

    Raises:
      ProcessesError: A process has failed.
    """
    facts = {
      "snapshot": snapshot,
      "refused": refused,
      "metrics": metrics,
      "abandoned": abandoned,
      "preempted": self._preempted.is_set(),
    }
    decision = self._steps.exchange(f"step {step}", facts, _decide_step)
    self.last = StepDecision(**decision)
    if self.last.stop and self._last_step is None:
      self._last_step = step
    return self.last

  def after_step(self, step: int) -> tuple[bool, bool]:
    """Returns whether to save after `step` steps, and whether to end then."""
    stop = self._last_step is not None and step > self._last_step
    if self._steps.count == 1:
      stop = self._preempted.is_set()
    is_due = step % self._save_every_steps == 0 or step == self._num_steps
    return is_due or stop, stop

  def stop_requested(self) -> bool:
    """Whether a run that waits between two steps should give up.

    Raises the errors of `check`.
    """
    self._check()
    return self.preempted_anywhere.is_set()


def _decide_step(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the fields of a `StepDecision`, from the facts of all processes."""
  snapshot = facts[0]["snapshot"]
  return {
    "load": snapshot,
    "snapshot": snapshot
    if all(fact["snapshot"] == snapshot for fact in facts)
    else None,
    "refused": snapshot is not None
    and any(fact["refused"] == snapshot for fact in facts),
    "stop": any(fact["preempted"] for fact in facts),
    "abandoned": any(fact["abandoned"] for fact in facts),
    "metrics": {
      name: sum(fact["metrics"].get(name, 0.0) for fact in facts) / len(facts)
      for name in facts[0]["metrics"]
    },
  }
