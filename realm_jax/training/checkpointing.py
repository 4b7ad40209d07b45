"""Checkpoints of a run: what it starts or continues from, and what it saves."""

from collections.abc import Container, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import Mesh, NamedSharding

from realm_jax.checkpoints.manager import (
  CheckpointError,
  CheckpointStore,
  locate,
)
from realm_jax.checkpoints.vocabulary import require_vocabulary
from realm_jax.models.parameters import Params
from realm_jax.training.loop_state import LoopState, RunIdentity
from realm_jax.training.metrics import NonFiniteLossError
from realm_jax.training.state import TrainState

T = TypeVar("T")
# For each component, the MODEL_DIR or checkpoint that it starts from, or None.
Sources = Mapping[str, epath.PathLike | None]


class Checkpointer:
  """Initializes or restores the state of a run, and saves it.

  Args:
    store: Checkpoints of the run.
    identity: What the run must share with its checkpoints.
  """

  def __init__(self, store: CheckpointStore, identity: RunIdentity):
    self._store = store
    self._identity = identity

  def initialize_or_restore(
    self,
    state: TrainState,
    sources: Sources,
    *,
    required: Container[str] = (),
  ) -> tuple[TrainState, LoopState]:
    """Returns the state of the last checkpoint, or that of a new run.

    Args:
      state: Freshly initialized state, on the devices.
      sources: Checkpoints that the components of a new run start from.
      required: Components that their source must have.

    Raises:
      CheckpointError: A checkpoint does not fit, or the run has only its
        first and was started from other sources.
    """
    vocabulary = self._identity.vocabulary
    if self._store.steps():
      state, loop_state = self._restore(state)
      if int(state.step) == 0:
        require_started_from(
          state.params,
          sources,
          vocabulary=vocabulary,
          model_dir=self._store.directory,
        )
      return state, loop_state
    params = load_initial(
      state.params, sources, vocabulary=vocabulary, required=required
    )
    return state._replace(params=params), LoopState(position=0)

  def _restore(self, state: TrainState) -> tuple[TrainState, LoopState]:
    """Returns the last checkpoint, with the shapes and devices of `state`.

    Raises:
      CheckpointError: It does not fit, or was made with another vocabulary,
        seed, batch size or number of blocks.
    """
    store, step = self._store, self._store.latest()
    where = f"{store.directory}/{step}"
    require_vocabulary(store, step, self._identity.vocabulary)
    if "optimizer" not in store.items(step):
      raise CheckpointError(
        f"{where} has weights alone, which no trainer wrote; give it as "
        "INITIAL_CHECKPOINT, and this run another MODEL_DIR"
      )
    like = {
      **abstract(state.params),
      "optimizer": abstract(state.optimizer),
    }
    restored = store.restore(step, items=(*like, "loop"), like=like)
    item = restored.pop("loop")
    optimizer = restored.pop("optimizer")
    self._identity.require_same(item, where)
    logging.info("continuing from checkpoint %d of %s", step, store.directory)
    return (
      TrainState(
        step=jax.device_put(np.int32(step), state.step.sharding),
        params=restored,
        optimizer=optimizer,
      ),
      LoopState.from_item(item, _mesh_of(state)),
    )

  def save_if_new(self, state: TrainState, loop_state: LoopState) -> None:
    """Saves the first checkpoint of a run that has none."""
    if not self._store.steps():
      self.save(state, loop_state)

  def save(self, state: TrainState, loop_state: LoopState) -> None:
    """Copies the state off the devices; it is written in the background.

    Raises:
      OSError: This checkpoint, or the one before, could not be written.
    """
    item = loop_state.to_item(_mesh_of(state)) | self._identity.to_item()
    items = {**state.params, "optimizer": state.optimizer, "loop": item}
    self._store.save(int(state.step), items)

  def wait(self) -> None:
    """Waits until the last checkpoint is committed."""
    self._store.wait()

  def with_last_good(self, error: NonFiniteLossError) -> NonFiniteLossError:
    """Returns the error with the checkpoint to continue from."""
    self.wait()
    return NonFiniteLossError(
      f"{error}; the last good checkpoint, step {self._store.latest()} of "
      f"{self._store.directory}, is intact: continue from it with a lower "
      "learning rate"
    )


def abstract(tree: T) -> T:
  """Returns abstract arrays with the shardings of a tree's arrays."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
  )


def _mesh_of(state: TrainState) -> Mesh:
  sharding = state.step.sharding
  assert isinstance(sharding, NamedSharding)
  assert isinstance(sharding.mesh, Mesh)
  return sharding.mesh


def require_started_from(
  params: Params,
  sources: Sources,
  *,
  vocabulary: str,
  model_dir: epath.PathLike,
) -> None:
  """Checks that a run that has only checkpoint 0 was started from `sources`.

  Raises:
    CheckpointError: The parameters have other values than their sources.
  """
  wanted = load_initial(params, sources, vocabulary=vocabulary)
  for name, path in sources.items():
    if path is None or name not in params:
      continue
    same = jax.tree.map(jnp.array_equal, params[name], wanted[name])
    if not all(jax.tree.leaves(same)):
      raise CheckpointError(
        f"{model_dir} was started before with another {name} than that of "
        f"{path}, and its first generation may exist; remove {model_dir}, or "
        "choose another MODEL_DIR"
      )


def load_initial(
  params: Params,
  sources: Sources,
  *,
  vocabulary: str,
  required: Container[str] = (),
) -> Params:
  """Replaces components by those of earlier checkpoints.

  Args:
    params: Freshly initialized parameters by component, on their devices.
    sources: Checkpoint of each component. A component that its checkpoint does
      not have keeps its initial values, and a line in the log says so.
    vocabulary: SHA-256 of the corpus's vocabulary.
    required: Components that their checkpoint must have.

  Raises:
    CheckpointError: A path is no checkpoint, or the checkpoint has other
      shapes or another vocabulary, or lacks a required component.
  """
  params = dict(params)
  for name, path in sources.items():
    if path is None or name not in params:
      continue
    store, step = locate(path)
    try:
      present = store.items(step)
      if not present:
        raise CheckpointError(
          f"checkpoint {step} of {path} is empty; copy it again, or give "
          "another"
        )
      require_vocabulary(store, step, vocabulary)
      if name in present:
        like = {name: abstract(params[name])}
        params[name] = store.restore(step, items=(name,), like=like)[name]
        logging.info("%s starts from checkpoint %d of %s", name, step, path)
      elif name in required:
        raise CheckpointError(
          f"checkpoint {step} of {path} has no {name}, only "
          f"{sorted(present)}; give one that has, or do not bind "
          f"INITIAL_{name.upper()}"
        )
      else:
        logging.info(
          "%s starts from random values: checkpoint %d of %s has none",
          name,
          step,
          path,
        )
    finally:
      store.close()
  return params
