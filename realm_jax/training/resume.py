"""What a checkpoint holds beside parameters, so that a run goes on exactly."""

from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from realm_jax.checkpoints.manager import CheckpointError, CheckpointStore
from realm_jax.indexes.protocol import SearchResult
from realm_jax.training.state import TrainState

_NO_GENERATION = -1


class LoopState(NamedTuple):
  """The trainer's place.

  Attributes:
    position: in the data, of the first example of the next step.
    generation: the step of the generation in use; None without an index.
    found: what was found for the next step's queries, by the whole batch.
  """

  position: int
  generation: int | None = None
  found: SearchResult | None = None


def save(
  store: CheckpointStore, state: TrainState, loop: LoopState, *, seed: int
) -> None:
  """Saves the state after `state.step` steps; returns when it is copied."""
  generation = loop.generation
  place: dict[str, Any] = {
    "position": np.int64(loop.position),
    "generation": np.int64(
      _NO_GENERATION if generation is None else generation
    ),
    "seed": np.int64(seed),
  }
  if loop.found is not None and loop.found.rows.size:
    place["rows"] = loop.found.rows
    place["scores"] = loop.found.scores
  store.save(
    int(state.step),
    {**state.params, "optimizer": state.optimizer, "loop": place},
  )


def restore(
  store: CheckpointStore, state: TrainState, *, seed: int
) -> tuple[TrainState, LoopState]:
  """The last checkpoint, in the shape and on the devices of `state`.

  Raises:
    CheckpointError: it does not fit, or another seed made it.
  """
  step = store.latest()

  def abstract(tree: Any) -> Any:
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      tree,
    )

  like = {**abstract(state.params), "optimizer": abstract(state.optimizer)}
  restored = store.restore(step, items=(*like, "loop"), like=like)
  place = restored.pop("loop")
  optimizer = restored.pop("optimizer")
  if int(place["seed"]) != seed:
    raise CheckpointError(
      f"{store.directory}/{step} was trained with SEED={int(place['seed'])}, "
      f"not {seed}; the data order would differ: use that seed or another "
      "MODEL_DIR"
    )
  found = None
  if "rows" in place:
    found = SearchResult(
      rows=np.asarray(place["rows"]), scores=np.asarray(place["scores"])
    )
  generation = int(place["generation"])
  logging.info("going on from checkpoint %d of %s", step, store.directory)
  return (
    TrainState(
      step=jax.device_put(np.int32(step), state.step.sharding),
      params=restored,
      optimizer=optimizer,
    ),
    LoopState(
      position=int(place["position"]),
      generation=None if generation == _NO_GENERATION else generation,
      found=found,
    ),
  )
