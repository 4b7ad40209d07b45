"""What a checkpoint holds beside parameters, so that a run goes on exactly."""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Float32, Int64

from realm_jax.checkpoints.manager import CheckpointError, CheckpointStore
from realm_jax.checkpoints.vocabulary import (
  VOCABULARY,
  require_vocabulary,
  vocabulary_digest,
)
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.partitioning import rules
from realm_jax.training.state import TrainState

_NO_GENERATION = -1


@dataclasses.dataclass(frozen=True)
class RunIdentity:
  """What a run shares with the one that it goes on from.

  Attributes:
    seed: of data order, masks and dropout.
    batch_size: the global batch.
    num_searched: blocks that a query wants; 0 without an index.
    save_every_steps: which checkpoints a waiting run uses generations of, …
    lag_steps: … and how much later; 0 both for a run that does not wait.
    vocabulary: the sha256 of the corpus's, in hexadecimal.
    corpus_version: of the corpus that the run began with, whose blocks are its
      examples for as long as it runs, …
    corpus_fingerprint: … and that version's fingerprint.
  """

  seed: int
  batch_size: int
  num_searched: int
  save_every_steps: int
  lag_steps: int
  vocabulary: str
  corpus_version: int
  corpus_fingerprint: str


# Of the item "loop".
_CORPUS_VERSION, _CORPUS_FINGERPRINT = "corpus_version", "corpus_fingerprint"
_BINDINGS = {
  "seed": "SEED",
  "batch_size": "BATCH_SIZE",
  "num_searched": "NUM_CANDIDATES or NUM_SEARCHED",
  "save_every_steps": "SAVE_EVERY_STEPS and WAIT_FOR_GENERATIONS",
  "lag_steps": "LAG_STEPS and WAIT_FOR_GENERATIONS",
}


class FoundBlocks(NamedTuple):
  """What was found for queries, in ids that outlive a version of the corpus."""

  ids: Int64[np.ndarray, "b k"]
  scores: Float32[np.ndarray, "b k"]

  @classmethod
  def of(cls, found: SearchResult, corpus: Corpus) -> "FoundBlocks":
    """What was found by rows of this version."""
    return cls(corpus.block_ids[found.rows], found.scores)

  def in_rows(self, corpus: Corpus) -> SearchResult | None:
    """The same in rows of a version; None where that lacks one of them."""
    rows = corpus.rows_of(self.ids)
    if (rows == NULL_ROW).any():
      return None
    return SearchResult(rows=rows, scores=self.scores)


class LoopState(NamedTuple):
  """The trainer's place.

  Attributes:
    position: in the data, of the first example of the next step.
    generation: the step of the generation in use; None without an index.
    found: what was found for the next step's queries of this process.
  """

  position: int
  generation: int | None = None
  found: FoundBlocks | None = None

  @classmethod
  def at(
    cls, position: int, generation: Any, found: SearchResult | None
  ) -> "LoopState":
    """The place of a run that has searched a generation, if it has one."""
    if generation is None:
      return cls(position)
    blocks = None if found is None else FoundBlocks.of(found, generation.corpus)
    return cls(position, generation.step, blocks)


def _mesh_of(state: TrainState) -> Mesh:
  sharding = state.step.sharding
  assert isinstance(sharding, NamedSharding)
  assert isinstance(sharding.mesh, Mesh)
  return sharding.mesh


def save(
  store: CheckpointStore,
  state: TrainState,
  loop: LoopState,
  *,
  identity: RunIdentity,
) -> None:
  """Saves the state after `state.step` steps; returns when it is copied."""
  generation = loop.generation
  place: dict[str, Any] = {
    "position": np.int64(loop.position),
    "generation": np.int64(
      _NO_GENERATION if generation is None else generation
    ),
    **{name: np.int64(getattr(identity, name)) for name in _BINDINGS},
    VOCABULARY: vocabulary_digest(identity.vocabulary),
    _CORPUS_VERSION: np.int64(identity.corpus_version),
    _CORPUS_FINGERPRINT: vocabulary_digest(identity.corpus_fingerprint),
  }
  if loop.found is not None and loop.found.ids.size:
    # Of the global batch: each process has its own rows. Devices have no
    # integers of 64 bits.
    ids = np.ascontiguousarray(loop.found.ids)
    words = ids.view(np.int32).reshape(*ids.shape, 2)
    found = {"ids": words, "scores": loop.found.scores}
    place |= rules.to_devices(found, _mesh_of(state))
  store.save(
    int(state.step),
    {**state.params, "optimizer": state.optimizer, "loop": place},
  )


def recorded_corpus(store: CheckpointStore, step: int) -> tuple[int, str]:
  """The version and fingerprint of the corpus that a run began with.

  Raises:
    CheckpointError: the checkpoint does not say, or cannot be read.
  """
  place = store.restore(step, items=("loop",))["loop"]
  if _CORPUS_VERSION not in place:
    raise CheckpointError(
      f"{store.directory}/{step} does not say which version of the corpus its "
      "run began with, so that it could not go on as it was; give it as "
      "INITIAL_CHECKPOINT, and this run another MODEL_DIR"
    )
  fingerprint = np.asarray(place[_CORPUS_FINGERPRINT], np.uint8).tobytes()
  return int(place[_CORPUS_VERSION]), fingerprint.hex()


def restore(
  store: CheckpointStore, state: TrainState, *, identity: RunIdentity
) -> tuple[TrainState, LoopState]:
  """The last checkpoint, in the shape and on the devices of `state`.

  Raises:
    CheckpointError: it does not fit, or was made with another vocabulary,
      seed, batch size or number of blocks.
  """
  step = store.latest()
  require_vocabulary(store, step, identity.vocabulary)
  if "optimizer" not in store.items(step):
    raise CheckpointError(
      f"{store.directory}/{step} has weights alone, which no trainer wrote; "
      "give it as INITIAL_CHECKPOINT, and this run another MODEL_DIR"
    )

  def abstract(tree: Any) -> Any:
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      tree,
    )

  like = {**abstract(state.params), "optimizer": abstract(state.optimizer)}
  restored = store.restore(step, items=(*like, "loop"), like=like)
  place = restored.pop("loop")
  optimizer = restored.pop("optimizer")
  for name, binding in _BINDINGS.items():
    recorded, wanted = int(place[name]), getattr(identity, name)
    if recorded != wanted:
      raise CheckpointError(
        f"{store.directory}/{step} was trained with {name}={recorded}, not "
        f"{wanted}, and could not go on as it was: give {binding} as before, "
        "or another MODEL_DIR"
      )
  found = None
  if "ids" in place:
    mesh = _mesh_of(state)
    words = np.ascontiguousarray(rules.own_rows(place["ids"], mesh))
    found = FoundBlocks(
      ids=words.view(np.int64)[..., 0],
      scores=rules.own_rows(place["scores"], mesh),
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
