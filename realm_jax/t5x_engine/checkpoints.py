"""Checkpoints of t5x's loop, in the format of ours.

t5x decides when to save. What is saved, and where, is what `realm_jax.train`
would save. So the sidecar builds generations from it, evaluation reads it, and
either engine continues a run of the other.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import flax
import jax
import numpy as np
from etils import epath
from flax.serialization import to_state_dict
from t5x import utils
from t5x.train_state import FlaxOptimTrainState

from realm_jax.partitioning import sharding
from realm_jax.t5x_engine.run import EngineRun
from realm_jax.training.state import TrainState


def _ours(state: FlaxOptimTrainState, run: EngineRun) -> TrainState:
  """Returns a state of t5x's as ours, over the same arrays."""
  # Our checkpoints take the mesh from here, and t5x's has other axes.
  step = np.int32(utils.get_local_data(state.step))
  return TrainState(
    step=jax.device_put(step, sharding.replicated(run.setup.mesh)),
    params=flax.core.unfreeze(state.params),
    optimizer=state.param_states,
  )


class StateInitializer(utils.TrainStateInitializer):
  """Makes the state that t5x's loop begins with.

  It is that of the run's last checkpoint. A new run has random parameters, or
  those of the checkpoints that its configuration names. The other arguments
  are t5x's.

  Raises:
    CheckpointError: A checkpoint is missing or does not fit.
  """

  def __init__(self, *, run: EngineRun, **given: Any):
    super().__init__(**given)
    self._run = run

  def from_scratch(self, init_rng: jax.Array) -> FlaxOptimTrainState:
    """Returns the state, every array on its own devices."""
    fresh = super().from_scratch(init_rng)
    ours = _ours(fresh, self._run)
    ours, _ = self._run.checkpointer.initialize_or_restore(ours)
    step = jax.device_put(np.int32(ours.step), fresh.step.sharding)
    return fresh.restore_state(
      {
        "target": ours.params,
        "state": {"step": step, "param_states": to_state_dict(ours.optimizer)},
      }
    )


class CheckpointManager:
  """Saves checkpoints as our own loop does, behind t5x's interface.

  t5x's arguments have no effect: format, folder and number of checkpoints are
  those of the run.
  """

  def __init__(self, *, run: EngineRun, **given: Any):
    del given
    self._run = run

  @property
  def directory(self) -> epath.Path:
    """Directory of the checkpoints."""
    return self._run.store.directory

  def all_steps(self) -> list[int]:
    """Returns the steps of the checkpoints, in order."""
    return self._run.store.steps()

  def latest_step(self) -> int | None:
    """Returns the step of the last checkpoint; None where there is none."""
    return max(self.all_steps(), default=None)

  def should_save(self, step: int) -> bool:
    """Returns whether a step has no checkpoint yet."""
    return step not in self.all_steps()

  def save(
    self,
    train_state: FlaxOptimTrainState,
    state_transformation_fns: Sequence[Any] = (),
    force: bool = True,
  ) -> bool:
    """Copies a state off the devices; it is written in the background.

    Returns whether the step had no checkpoint yet.
    """
    if state_transformation_fns:
      raise ValueError("state_transformation_fns are not supported here")
    del force
    ours = _ours(train_state, self._run)
    step = int(ours.step)
    if not self.should_save(step):
      return False
    self._run.sole.check()
    self._run.checkpointer.save(ours, self._run.loop_state(step))
    return True

  def restore(self, *given: Any, **settings: Any) -> NoReturn:
    """Raises an error: `StateInitializer` restores, and t5x's are not read."""
    raise ValueError(
      "checkpoints in t5x's format are not read; bind utils.CheckpointConfig."
      "restore = None, and give a MODEL_DIR of ours as INITIAL_CHECKPOINT"
    )

  def wait_until_finished(self) -> None:
    """Waits until the last checkpoint is committed."""
    self._run.checkpointer.wait()

  def close(self) -> None:
    """Waits likewise; the run closes the files when the process exits."""
    self._run.checkpointer.wait()
