"""The parts of t5x's loop, over a run of ours."""

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import jax
import numpy as np
from clu import metrics
from clu.data.dataset_iterator import DatasetIterator
from t5x import partitioning, trainer
from t5x.train_state import InferenceState

from realm_jax.partitioning.mesh import BATCH_AXES
from realm_jax.t5x_engine.run import EngineRun
from realm_jax.training.state import TrainState


class RunPartitioner(partitioning.BasePjitPartitioner):
  """The division of arrays over the devices that the run has chosen."""

  def __init__(self, run: EngineRun):
    super().__init__(num_partitions=1)
    placed: Any = run.state.step.sharding
    self.mesh = placed.mesh
    self._data_axis = BATCH_AXES

  def get_mesh_axes(self, train_state: InferenceState) -> InferenceState:
    """Returns the partitions of abstract parameters, as t5x logs them."""
    return jax.tree.map(lambda leaf: leaf.sharding.spec, train_state)


class RunInfeed(DatasetIterator):
  """Batches without arrays: the step takes those that the run prepares.

  A run reads, embeds and searches one step ahead, with the current parameters,
  which an infeed of t5x's does not see. t5x's arguments have no effect.
  """

  element_spec: Mapping[str, Any] = {}

  def __init__(self, *given: Any):
    del given

  def __next__(self) -> dict[str, Any]:
    return {}


class RunInitializer:
  """Hands t5x the state of the run's last checkpoint, or that of a new run.

  t5x's arguments have no effect.
  """

  train_state_axes = None

  def __init__(self, *, run: EngineRun, **given: Any):
    del given
    self._state = run.state
    # What t5x logs.
    self.global_train_state_shape = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      InferenceState(run.state.step, run.state.params),
    )

  def from_scratch(self, init_rng: jax.Array) -> TrainState:
    """Returns the state, every array on its own devices."""
    del init_rng
    return self._state


class RunTrainer(trainer.BaseTrainer):
  """t5x's trainer, whose step is the next one of the run.

  That step saves checkpoints, and checks the loss, as `realm_jax.train` does.
  """

  def __init__(self, *, run: EngineRun, **given: Any):
    super().__init__(**given)
    self._run = run

  def compile_train(self, batch: Mapping[str, Any]) -> None:
    """Does nothing: the run has compiled its steps."""

  def _partitioned_train_step(
    self, state: TrainState, batch: Mapping[str, Any]
  ) -> tuple[TrainState, dict[str, metrics.Average]]:
    """Runs a step. Once the run was preempted and has saved, it exits."""
    del batch, state
    for state, found in self._run.steps:
      # The type checker does not see the fields of flax's dataclasses.
      average: Any = metrics.Average
      one = np.float32(1)
      return state, {k: average(total=x, count=one) for k, x in found.items()}
    self.close()
    sys.exit()

  @property
  def _partitioned_eval_step(self) -> NoReturn:
    raise ValueError(
      "t5x cannot evaluate this model; evaluate MODEL_DIR with "
      "`python -m realm_jax.evaluate`"
    )

  def close(self) -> None:
    """Closes the run, too."""
    super().close()
    self._run.close()
