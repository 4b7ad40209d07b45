"""A run of a stage in t5x's loop.

t5x makes its partitioner, model, infeed, initial state and trainer one by one.
Each of ours takes the same `EngineRun`, which a gin file makes once
(`gin.singleton`).
"""

import contextlib
from collections.abc import Iterator

from absl import app

import gin
from realm_jax.configuration import kept_files, names
from realm_jax.training import kept_configuration, loop
from realm_jax.training.config import TrainConfig
from realm_jax.training.state import TrainState
from realm_jax.training.step import Metrics
from realm_jax.training.trainer import open_run

# t5x parses and finalizes the configuration by itself.
gin.config.register_finalize_hook(lambda config: names.bind())


class EngineRun(app.ExceptionHandler):
  """A run that is opened as `realm_jax.train` opens it.

  It raises what `training.trainer.train` does. It is closed when t5x closes its
  trainer, or where t5x ends in an error, before Python shuts down its threads:
  so that error is the only one that is printed.

  Args:
    config: Configuration of the run, as for `realm_jax.train`.

  Attributes:
    state: State before the first step.
    steps: Iterator over the steps (`training.loop.iterate`).
  """

  # t5x takes these from its model for an infeed and a state of its own.
  FEATURE_CONVERTER_CLS = optimizer_def = get_initial_variables = None

  def __init__(self, config: TrainConfig):
    self._closing = contextlib.ExitStack()
    app.install_exception_handler(self)
    # t5x itself keeps the whole configuration.
    name = kept_configuration.MODEL
    kept = {name: kept_files(config.stage)[name]}
    self.state: TrainState
    self.state, run = self._closing.enter_context(open_run(config, kept))
    self.steps: Iterator[tuple[TrainState, Metrics]] = iter(())
    if run is not None:
      self.steps = loop.iterate(self.state, run, num_steps=config.num_steps)

  def handle(self, exc: Exception) -> None:
    """Closes the run after an error of t5x's loop."""
    del exc
    self.close()

  def close(self) -> None:
    """Closes what the run has opened."""
    self._closing.close()
