"""A run of a stage in t5x's loop, and its checkpoints.

t5x decides when to save. What is saved, and where, is what `realm_jax.train`
would save. So the sidecar builds generations from it, evaluation reads it, and
either engine continues a run of the other.
"""

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import flax
import jax
import numpy as np
from flax.serialization import to_state_dict
from t5x import utils
from t5x.train_state import FlaxOptimTrainState

import gin
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.configuration import kept_files, names
from realm_jax.files import kept_configuration
from realm_jax.files.sole_process import SoleProcess, sole_process
from realm_jax.models.arrays import AnyArray
from realm_jax.partitioning import sharding
from realm_jax.training.candidates import Candidates
from realm_jax.training.checkpointing import Checkpointer, LoopState
from realm_jax.training.config import TrainConfig
from realm_jax.training.setup import set_up
from realm_jax.training.stages.stage import StepBatch
from realm_jax.training.state import TrainState

# t5x parses and finalizes the configuration by itself.
gin.config.register_finalize_hook(lambda config: names.bind())


class EngineRun:
  """What the model, the infeed and the checkpoints of a run share.

  t5x makes these one by one. Each of ours takes this object, which a gin file
  makes once (`gin.singleton`).

  Args:
    config: Configuration of the run, as for `realm_jax.train`.

  Attributes:
    setup: What follows from configuration, corpus and devices alone.
    store: The run's checkpoints.
    first_step: Step that t5x's loop begins with.
    resumed: State of the data before that step.
    example: Arrays of a global batch of padding, by name.
    candidates: Candidate stream of the infeed, once it is open.
    closing: Closes what the run has opened, at the exit of the process.
    sole: On process 0, the right to write to MODEL_DIR.

  It raises what `set_up` does, and:

  Raises:
    SoleProcessError: MODEL_DIR has a trainer already.
    ValueError: The configuration wants what t5x does not have: retrieval
      inside the step, micro-batches, or a mesh with an axis fsdp.
  """

  def __init__(self, config: TrainConfig):
    _require_supported(config)
    self.config = config
    self.candidates: Candidates | None = None
    self.closing = contextlib.ExitStack()
    weakref.finalize(self, self.closing.close)
    self.sole = SoleProcess()
    if jax.process_index() == 0:
      self.sole = self.closing.enter_context(sole_process(config.model_dir))
      # t5x itself keeps the whole configuration.
      name = kept_configuration.MODEL
      kept_configuration.keep_configuration(
        config.model_dir, {name: kept_files(config.stage)[name]}
      )
    self.setup = set_up(config)
    keep = config.checkpoints.keep_checkpoints
    self.store = CheckpointStore(config.model_dir, keep=keep)
    self.closing.callback(self.store.close)
    self.checkpointer = Checkpointer(
      self.store, self.setup.identity, config.checkpoints
    )
    self.first_step = 0
    self.resumed = LoopState(self.setup.own_rows.astype(np.int64))
    if self.store.steps():
      self.first_step = self.store.latest()
      self.resumed = self.checkpointer.loop_state(self.setup.mesh)
    example = config.stage.example(self.setup.empty_arrays())
    self.example = flatten(example)
    self._structure = jax.tree.structure(example)

  def unflatten(self, arrays: Mapping[str, AnyArray]) -> StepBatch:
    """Returns the batch of arrays that have the names of `example`."""
    leaves = [arrays[name] for name in self.example]
    return jax.tree.unflatten(self._structure, leaves)

  def ours(self, state: FlaxOptimTrainState) -> TrainState:
    """Returns a state of t5x's as ours, over the same arrays."""
    # Our checkpoints take the mesh from here, and t5x's has other axes.
    step = np.int32(utils.get_local_data(state.step))
    return TrainState(
      step=jax.device_put(step, sharding.replicated(self.setup.mesh)),
      params=flax.core.unfreeze(state.params),
      optimizer=state.param_states,
    )


def _require_supported(config: TrainConfig) -> None:
  if config.retrieve_on_device:
    raise ValueError(
      "t5x reads whole batches from its infeed, and cannot retrieve inside its "
      "step; set RETRIEVE_ON_DEVICE = False"
    )
  if config.num_microbatches > 1:
    raise ValueError(
      f"NUM_MICROBATCHES={config.num_microbatches}: t5x computes the gradient "
      "of a whole batch at once; set NUM_MICROBATCHES = 1"
    )
  if config.mesh.fsdp > 1:
    raise ValueError(
      f"FSDP={config.mesh.fsdp}: the meshes of t5x have no axis fsdp; divide "
      "parameters over the data axis instead: "
      '--gin.AXIS_RULES=\'[("embed", "data")]\''
    )


def flatten(batch: StepBatch) -> dict[str, np.ndarray]:
  """Returns the arrays of a batch by name, each with a row for an example."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
  }


class StateInitializer(utils.TrainStateInitializer):
  """Makes the state that t5x's loop begins with.

  It is that of the run's last checkpoint. A new run has random parameters, or
  those of the checkpoints that its configuration names. The other arguments
  are t5x's.
  """

  def __init__(self, *, run: EngineRun, **given: Any):
    super().__init__(**given)
    self._run = run

  def from_scratch(self, init_rng: jax.Array) -> FlaxOptimTrainState:
    """Returns the state, every array on its own devices.

    Raises:
      CheckpointError: A checkpoint is missing or does not fit.
    """
    fresh = super().from_scratch(init_rng)
    ours, _ = self._run.checkpointer.initialize_or_restore(
      self._run.ours(fresh)
    )
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
    self.all_steps = run.store.steps
    # The files are closed when the process exits.
    self.wait_until_finished = self.close = run.checkpointer.wait

  def save(
    self,
    train_state: FlaxOptimTrainState,
    state_transformation_fns: Sequence[Any] = (),
  ) -> None:
    """Copies a state off the devices; it is written in the background.

    A step that has a checkpoint is left out.
    """
    if state_transformation_fns:
      raise ValueError(
        "checkpoints are saved as our own loop saves them; bind "
        "utils.SaveCheckpointConfig.state_transformation_fns = ()"
      )
    run, ours = self._run, self._run.ours(train_state)
    step, loop_state = int(ours.step), run.resumed
    if step in self.all_steps():
      return
    if step != run.first_step:
      assert run.candidates is not None
      loop_state = run.candidates.state(step)
    run.sole.check()
    # The generation's own query tower finds the same blocks again.
    run.checkpointer.save(ours, loop_state._replace(retrieved=None))

  def restore(self, *given: Any, **settings: Any) -> NoReturn:
    """Raises an error: `StateInitializer` restores, and t5x's are not read."""
    raise ValueError(
      "checkpoints in t5x's format are not read; bind utils.CheckpointConfig."
      "restore = None, and give a MODEL_DIR of ours as INITIAL_CHECKPOINT"
    )
