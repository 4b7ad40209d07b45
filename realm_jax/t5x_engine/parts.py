"""Components with which t5x's loop runs our training.

t5x counts the steps and writes their summaries. Each step is the next step of
our own run (`training.loop.iterate`), which reads, searches, computes and saves
as in `realm_jax.train`. So the builder, the evaluation and our own loop can
read what a run with t5x has written.

t5x creates its partitioner, model, infeed, initial state and trainer one by
one. Our versions share an `EngineRun`, which a gin file creates once
(`gin.singleton`).
"""

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
import numpy as np
from absl import app
from clu import metrics
from clu.data.dataset_iterator import DatasetIterator
from t5x import partitioning, trainer
from t5x.train_state import InferenceState

import gin
from realm_jax import configuration
from realm_jax.errors import RealmError
from realm_jax.partitioning.mesh import BATCH_AXES
from realm_jax.training import loop
from realm_jax.training.config import TrainConfig
from realm_jax.training.state import Metrics, TrainState
from realm_jax.training.trainer import open_run


class EngineRun(app.ExceptionHandler):
  """A run, opened as in `realm_jax.train`.

  Its configuration is what t5x parsed with gin. It raises the same errors as
  `training.trainer.train`. It is closed when t5x closes its trainer. If t5x
  fails, it is closed before Python shuts down threads, so no further error is
  printed.

  Attributes:
    state: State before the first step.
    steps: Iterator over the steps (`training.loop.iterate`).
  """

  # t5x reads these from a model to create its own infeed and state.
  FEATURE_CONVERTER_CLS = optimizer_def = get_initial_variables = None

  def __init__(self) -> None:
    text = io.StringIO(gin.config_str())
    config = configuration.parsed(TrainConfig, [text]).build(TrainConfig)
    self._closing = contextlib.ExitStack()
    app.install_exception_handler(self)
    self.state: TrainState
    self.state, run = self._closing.enter_context(open_run(config))
    self.steps: Iterator[tuple[TrainState, Metrics]] = iter(())
    if run is not None:
      self.steps = loop.iterate(self.state, run, num_steps=config.num_steps)

  def handle(self, exc: Exception) -> None:
    """Closes the run after an error in t5x's loop."""
    del exc
    self.close()

  def close(self) -> None:
    """Closes the run."""
    self._closing.close()


class RunPartitioner(partitioning.BasePjitPartitioner):
  """The run's own partitioning of arrays over devices."""

  def __init__(self, run: EngineRun):
    super().__init__(num_partitions=1)
    placed: Any = run.state.step.sharding
    self.mesh = placed.mesh
    self._data_axis = BATCH_AXES

  def get_mesh_axes(self, train_state: InferenceState) -> InferenceState:
    """Returns the partitions of abstract parameters, which t5x logs."""
    return jax.tree.map(lambda leaf: leaf.sharding.spec, train_state)


class RunInfeed(DatasetIterator):
  """Yields empty batches, because each step uses the batch of the run.

  A run reads, embeds and searches ahead of the steps, with current parameters,
  which t5x does not pass to an infeed. t5x's arguments have no effect.
  """

  element_spec: Mapping[str, Any] = {}

  def __init__(self, *arguments: Any):
    del arguments

  def __next__(self) -> dict[str, Any]:
    return {}


class RunInitializer:
  """Returns the state of the run's last checkpoint, or a new state, to t5x.

  t5x's arguments have no effect.
  """

  train_state_axes = None

  def __init__(self, *, run: EngineRun, **arguments: Any):
    del arguments
    self._state = run.state
    # t5x logs this.
    self.global_train_state_shape = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      InferenceState(run.state.step, run.state.params),
    )

  def from_scratch(self, init_rng: jax.Array) -> TrainState:
    """Returns the state, with every array on its devices."""
    del init_rng
    return self._state


class RunTrainer(trainer.BaseTrainer):
  """A trainer for t5x, whose steps are the run's.

  Like `realm_jax.train`, they save checkpoints and check the loss.
  """

  def __init__(self, *, run: EngineRun, **arguments: Any):
    super().__init__(**arguments)
    self._run = run

  def compile_train(self, batch: Mapping[str, Any]) -> None:
    """Does nothing, because the run has compiled its steps."""

  def _partitioned_train_step(
    self, state: TrainState, batch: Mapping[str, Any]
  ) -> tuple[TrainState, dict[str, metrics.Average]]:
    """Runs a step; exits if the run was preempted and has saved."""
    del batch, state
    for state, values in self._run.steps:
      # The type checker does not see the fields of flax's dataclasses.
      average: Any = metrics.Average
      count = np.float32(1)
      return state, {
        name: average(total=value, count=count)
        for name, value in values.items()
      }
    self.close()
    sys.exit()

  @property
  def _partitioned_eval_step(self) -> NoReturn:
    raise RealmError(
      "t5x cannot evaluate this model; evaluate MODEL_DIR with "
      "`python -m realm_jax.evaluate`"
    )

  def close(self) -> None:
    """Closes the trainer and the run."""
    super().close()
    self._run.close()
