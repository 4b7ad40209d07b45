"""Where a stage's first parameters come from: the stage before it."""

from typing import Any

import jax
from absl import logging
from etils import epath

from realm_jax.checkpoints.manager import (
  FOLDER,
  CheckpointError,
  CheckpointStore,
)


def locate(path: epath.PathLike) -> tuple[CheckpointStore, int]:
  """A MODEL_DIR's latest checkpoint, or MODEL_DIR/checkpoints/STEP itself.

  Raises:
    CheckpointError: neither.
  """
  path = epath.Path(path)
  if path.parent.name == FOLDER and path.name.isdigit():
    return CheckpointStore(path.parent.parent), int(path.name)
  if not (path / FOLDER).exists():
    raise CheckpointError(
      f"{path} is not a checkpoint; want a MODEL_DIR with a {FOLDER} folder, "
      f"or one of its steps, MODEL_DIR/{FOLDER}/STEP"
    )
  store = CheckpointStore(path)
  return store, store.latest()


def load_initial(
  params: dict[str, Any],
  sources: dict[str, epath.PathLike | None],
) -> dict[str, Any]:
  """Replaces components by those of earlier checkpoints.

  Args:
    params: freshly initialised parameters by component, on their devices.
    sources: for each component its checkpoint, or None. A component that the
      checkpoint does not have keeps its fresh values, and a line says so.

  Raises:
    CheckpointError: a path is no checkpoint, or has other shapes.
  """
  params = dict(params)
  for name, path in sources.items():
    if path is None or name not in params:
      continue
    store, step = locate(path)
    try:
      if name not in store.items(step):
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
