"""Where a stage's first parameters come from: the stage before it."""

import dataclasses
from collections.abc import Container
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from etils import epath

from realm_jax.checkpoints.manager import (
  CheckpointError,
  CheckpointStore,
  locate,
)
from realm_jax.checkpoints.vocabulary import require_vocabulary
from realm_jax.training.resume import LoopState, RunIdentity, restore
from realm_jax.training.state import TrainState


def begin_or_go_on(
  store: CheckpointStore,
  state: TrainState,
  sources: dict[str, epath.PathLike | None],
  *,
  identity: RunIdentity,
  required: Container[str] = (),
) -> tuple[TrainState, LoopState]:
  """The state after a run's last checkpoint, or that of its beginning.

  Args:
    store: the run's own.
    state: freshly initialised, on the devices.
    sources: for each component the checkpoint that it begins with, or None.
    identity: what the run must share with its checkpoint.
    required: components that their source must have.

  Raises:
    CheckpointError: a checkpoint does not fit, or the run has only its first
      and began with other sources.
  """
  vocabulary = identity.vocabulary
  if not store.steps():
    params = load_initial(
      state.params, sources, vocabulary=vocabulary, required=required
    )
    return dataclasses.replace(state, params=params), LoopState(position=0)
  state, place = restore(store, state, identity=identity)
  if int(state.step) == 0:
    require_started_from(
      state.params, sources, vocabulary=vocabulary, model_dir=store.directory
    )
  return state, place


def require_started_from(
  params: dict[str, Any],
  sources: dict[str, epath.PathLike | None],
  *,
  vocabulary: str,
  model_dir: epath.PathLike,
) -> None:
  """Refuses sources that a run with only its checkpoint 0 did not start from.

  Raises:
    CheckpointError: they have other values than `params`.
  """
  wanted = load_initial(params, sources, vocabulary=vocabulary)
  for name, path in sources.items():
    if path is None or name not in params:
      continue
    same = jax.tree.map(jnp.array_equal, params[name], wanted[name])
    if not all(jax.tree.leaves(same)):
      raise CheckpointError(
        f"{model_dir} was started before, with another {name} than that of "
        f"{path}, and its first generation may stand; remove {model_dir}, or "
        "choose another MODEL_DIR"
      )


def load_initial(
  params: dict[str, Any],
  sources: dict[str, epath.PathLike | None],
  *,
  vocabulary: str,
  required: Container[str] = (),
) -> dict[str, Any]:
  """Replaces components by those of earlier checkpoints.

  Args:
    params: freshly initialised parameters by component, on their devices.
    sources: for each component its checkpoint, or None. A component that the
      checkpoint does not have keeps its fresh values, and a line says so, …
    vocabulary: the sha256 of the corpus's.
    required: … unless it is one of these.

  Raises:
    CheckpointError: a path is no checkpoint, has other shapes or another
      vocabulary, or lacks a component that is required.
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
      if name not in present and name in required:
        raise CheckpointError(
          f"checkpoint {step} of {path} has no {name}, only {sorted(present)}; "
          f"give one that has, or leave INITIAL_{name.upper()} out"
        )
      if name not in present:
        logging.info(
          "%s starts afresh: checkpoint %d of %s has none", name, step, path
        )
        continue
      like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        params[name],
      )
      restored = store.restore(step, items=(name,), like={name: like})
      params[name] = restored[name]
      logging.info("%s starts from checkpoint %d of %s", name, step, path)
    finally:
      store.close()
  return params
