"""Checkpoints of a run: what it starts or continues from, and what it saves."""

import contextlib
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding

from realm_jax.checkpoints.loop_item import (
  has_vectors_of,
  require_vocabulary,
)
from realm_jax.checkpoints.manager import (
  CheckpointError,
  CheckpointNotWrittenError,
  CheckpointStore,
  locate,
)
from realm_jax.models.parameters import Params
from realm_jax.partitioning import sharding
from realm_jax.retrieval.rolling_refresh import DatedVectors
from realm_jax.training.checkpointing.loop_state import LoopState, RunIdentity
from realm_jax.training.config import CheckpointConfig
from realm_jax.training.metrics import NonFiniteLossError
from realm_jax.training.state import TrainState

T = TypeVar("T")


class Checkpointer:
  """Initializes or restores the state of a run, and saves it."""

  def __init__(
    self,
    store: CheckpointStore,
    identity: RunIdentity,
    config: CheckpointConfig,
  ):
    self._store = store
    self._identity = identity
    self._config = config

  def initialize_or_restore(
    self, state: TrainState
  ) -> tuple[TrainState, LoopState]:
    """Returns the state of the last checkpoint, or that of a new run.

    `state` is that of a new run, freshly initialized on the devices. If there
    is a checkpoint, abstract arrays with their shardings will do.

    Raises:
      CheckpointError: A checkpoint does not fit, or the run has only its
        first and was started from other sources.
    """
    if not self._store.steps():
      params = self._load_initial(state.params)
      return state._replace(params=params), self._start(state)
    state, loop_state = self._restore(state)
    if int(state.step) == 0:
      self._require_started_from_sources(state.params)
    return state, loop_state

  def _restore(self, state: TrainState) -> tuple[TrainState, LoopState]:
    """Returns the last checkpoint, with the shapes and devices of `state`."""
    store, step = self._store, self._store.latest()
    where = f"{store.directory}/{step}"
    require_vocabulary(store, step, self._identity.vocabulary)
    if "optimizer" not in store.items(step):
      raise CheckpointError(
        f"{where} has weights alone, which no trainer wrote; give it as "
        "INITIAL_CHECKPOINT, and this run another MODEL_DIR"
      )
    like = _abstract({**state.params, "optimizer": state.optimizer})
    restored = store.restore(step, items=(*like, "loop"), like=like)
    item = restored.pop("loop")
    optimizer = restored.pop("optimizer")
    self._identity.require_same(item, where)
    logging.info("continuing from checkpoint %d of %s", step, store.directory)
    loop_state = LoopState.from_item(item, _mesh_of(state))
    done = jax.device_put(np.int32(step), state.step.sharding)
    return TrainState(done, restored, optimizer), loop_state

  def _start(self, state: TrainState) -> LoopState:
    """Returns the loop's state before the first step."""
    groups = sharding.row_groups(_mesh_of(state))
    rows = groups.own_rows(self._identity.batch_size)
    return LoopState(positions=rows.astype(np.int64))

  def _load_initial(self, params: Params) -> Params:
    """Replaces components by those of the checkpoints to start from."""
    return {
      name: self._load_component(name, fresh) for name, fresh in params.items()
    }

  def _load_component(self, name: str, fresh: Params) -> Params:
    source = self._config.source_of(name)
    if source is None:
      return fresh
    store, step = locate(source)
    with contextlib.closing(store):
      present = store.items(step)
      if not present:
        raise CheckpointError(
          f"checkpoint {step} of {source} is empty; copy it again, or give "
          "another"
        )
      require_vocabulary(store, step, self._identity.vocabulary)
      if name in present:
        logging.info("%s starts from checkpoint %d of %s", name, step, source)
        like = {name: _abstract(fresh)}
        return store.restore(step, items=(name,), like=like)[name]
      if name == "reader" and self._config.initial_reader is not None:
        raise CheckpointError(
          f"checkpoint {step} of {source} has no {name}, only "
          f"{sorted(present)}; give one that has, or do not bind "
          f"INITIAL_{name.upper()}"
        )
      logging.info(
        "%s starts from random values: checkpoint %d of %s has none",
        name,
        step,
        source,
      )
      return fresh

  def _require_started_from_sources(self, params: Params) -> None:
    """Checks a run that has only checkpoint 0 against what it starts from."""
    for name, wanted in self._load_initial(params).items():
      if wanted is params[name]:
        continue
      if not _all_equal(params[name], wanted):
        model_dir = self._store.directory.parent
        source = self._config.source_of(name)
        raise CheckpointError(
          f"{model_dir} was started before with another {name} than that of "
          f"{source}, and its first generation may exist; remove "
          f"{model_dir}, or choose another MODEL_DIR"
        )

  def save(self, state: TrainState, loop_state: LoopState) -> None:
    """Copies the state off the devices; it is written in the background.

    Raises:
      CheckpointNotWrittenError: The one before could not be written.
    """
    item = loop_state.to_item(_mesh_of(state)) | self._identity.to_item()
    items = {**state.params, "optimizer": state.optimizer, "loop": item}
    if loop_state.own is not None:
      items["vectors"] = loop_state.own.dated._asdict()
    self._store.save(int(state.step), items)

  def own_vectors(
    self, step: int, fingerprint: str, like: DatedVectors
  ) -> DatedVectors | None:
    """Restores the vectors of all blocks, with the shapes of abstract arrays.

    The number of padding rows may be another: it follows from the devices.

    Returns:
      The vectors; None where the checkpoint has none, or those of another
      corpus version than that with the `fingerprint`.
    """
    store = self._store
    # That of a new run is still being written.
    store.wait()
    if not has_vectors_of(store, step, fingerprint):
      return None
    count, _ = store.shapes(step, "vectors")["vectors"]
    stored = {}
    # What these devices cannot divide is read to the hosts.
    if count % like.sharding.mesh.size == 0:
      stored["vectors"] = like.with_rows(count)._asdict()
    item = store.restore(step, items=("vectors",), like=stored)["vectors"]
    return DatedVectors(**item).padded_like(like)

  def check(self) -> None:
    """Looks, without waiting, how the last save is; repeats one that failed.

    Raises:
      CheckpointNotWrittenError: It could not be written, however often tried.
    """
    self._store.check()

  def hurry(self) -> None:
    """Repeats failed saves for few seconds only, as this process must end."""
    self._store.hurry()

  def wait(self) -> None:
    """Waits until the last checkpoint is committed.

    Raises:
      CheckpointNotWrittenError: It could not be written, however often tried.
    """
    self._store.wait()

  def with_last_good(self, error: NonFiniteLossError) -> NonFiniteLossError:
    """Returns the error with the checkpoint to continue from."""
    with contextlib.suppress(CheckpointNotWrittenError):
      self.wait()
    return NonFiniteLossError(
      f"{error}; the last good checkpoint, step {self._store.latest()} of "
      f"{self._store.directory}, is intact: continue from it with a lower "
      "learning rate"
    )


@jax.jit
def _all_equal(one: Params, other: Params) -> jax.Array:
  """Returns whether two trees have the same values.

  This is one program. A program for each array would run at the same time as
  others, and the collectives of several processes would wait for each other.
  """
  same = jax.tree.map(jnp.array_equal, one, other)
  return jnp.stack(jax.tree.leaves(same)).all()


def _abstract(tree: T) -> T:
  """Returns abstract arrays with the shardings of a tree's arrays."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
  )


def _mesh_of(state: TrainState) -> Mesh:
  sharding = state.step.sharding
  assert isinstance(sharding, NamedSharding)
  assert isinstance(sharding.mesh, Mesh)
  return sharding.mesh
