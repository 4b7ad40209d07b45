"""What the model, the infeed and the checkpoints of a run share."""

import contextlib
import functools
import weakref
from collections.abc import Mapping

import jax
import numpy as np

import gin
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.configuration import kept_files, names
from realm_jax.files import kept_configuration
from realm_jax.files.sole_process import SoleProcess, sole_process
from realm_jax.models.arrays import AnyArray
from realm_jax.training.candidates import Candidates
from realm_jax.training.checkpointing import Checkpointer, LoopState
from realm_jax.training.config import TrainConfig
from realm_jax.training.setup import RunSetup, set_up
from realm_jax.training.stages.stage import StepBatch

# t5x parses and finalizes the configuration by itself.
gin.config.register_finalize_hook(lambda config: names.bind())


class EngineRun:
  """A run of a stage in t5x's loop.

  t5x makes its model, infeed and checkpoints one by one. Each of ours takes
  this object, which a gin file makes once (`gin.singleton`).

  Args:
    config: Configuration of the run, as for `realm_jax.train`.

  Attributes:
    candidates: Candidate stream of the infeed, once it is open.
    closing: Closes what the run has opened, at the exit of the process.
    sole: On process 0, the right to write to MODEL_DIR.

  Raises:
    SoleProcessError: MODEL_DIR has a trainer already.
    ValueError: The configuration wants what t5x does not have: retrieval
      inside the step, micro-batches, or a mesh with an axis fsdp.
  """

  def __init__(self, config: TrainConfig):
    if config.retrieve_on_device:
      raise ValueError(
        "t5x reads whole batches from its infeed, and cannot retrieve inside "
        "its step; set RETRIEVE_ON_DEVICE = False"
      )
    if config.num_microbatches > 1:
      raise ValueError(
        f"NUM_MICROBATCHES={config.num_microbatches}: t5x computes the "
        "gradient of a whole batch at once; set NUM_MICROBATCHES = 1"
      )
    if config.mesh.fsdp > 1:
      raise ValueError(
        f"FSDP={config.mesh.fsdp}: the meshes of t5x have no axis fsdp; divide "
        "parameters over the data axis instead: "
        '--gin.AXIS_RULES=\'[("embed", "data")]\''
      )
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

  @functools.cached_property
  def store(self) -> CheckpointStore:
    """The run's checkpoints."""
    keep = self.config.checkpoints.keep_checkpoints
    store = CheckpointStore(self.config.model_dir, keep=keep)
    self.closing.callback(store.close)
    return store

  @functools.cached_property
  def checkpointer(self) -> Checkpointer:
    """What initializes or restores the state, and saves it."""
    config = self.config.checkpoints
    return Checkpointer(self.store, self.setup.identity, config)

  @functools.cached_property
  def first(self) -> tuple[int, LoopState]:
    """Step that t5x's loop begins with, and the state of the data there.

    It must be asked for before t5x's loop begins.
    """
    if not self.store.steps():
      return 0, LoopState(positions=self.setup.own_rows.astype(np.int64))
    return self.store.latest(), self.checkpointer.loop_state(self.setup.mesh)

  @functools.cached_property
  def setup(self) -> RunSetup:
    """What follows from configuration, corpus and devices alone."""
    return set_up(self.config)

  @property
  def lengths(self) -> dict[str, int]:
    """Padded lengths of `query` and `block`."""
    data = self.config.data
    return {"query": data.query_length, "block": data.block_length}

  @functools.cached_property
  def example(self) -> dict[str, np.ndarray]:
    """The arrays of a global batch by name, as t5x wants them: padding."""
    setup = self.setup
    return flatten(setup.config.stage.example(setup.empty_arrays()))

  def unflatten(self, arrays: Mapping[str, AnyArray]) -> StepBatch:
    """Returns the batch of such arrays."""
    setup = self.setup
    example = setup.config.stage.example(setup.empty_arrays())
    return jax.tree.unflatten(
      jax.tree.structure(example), [arrays[name] for name in self.example]
    )

  def loop_state(self, step: int) -> LoopState:
    """Returns the state of the data before a step, for a checkpoint.

    Blocks that were retrieved for the step are left out: the generation's own
    query tower finds the same ones again.
    """
    first_step, state = self.first
    if step != first_step:
      assert self.candidates is not None
      state = self.candidates.state(step)
    return state._replace(retrieved=None)


def flatten(batch: StepBatch) -> dict[str, np.ndarray]:
  """Returns the arrays of a batch by name, each with a row for an example."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
  }
