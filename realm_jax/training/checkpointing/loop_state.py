"""What a checkpoint holds beside parameters, so that a run continues exactly.

It is the item `loop` of a checkpoint: a flat dictionary of arrays.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float32, Int32, Int64

from realm_jax.checkpoints import loop_item
from realm_jax.checkpoints.manager import CheckpointError, CheckpointStore
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.partitioning import sharding
from realm_jax.retrieval.rolling_refresh import DatedVectors

_CORPUS_VERSION, _CORPUS_FINGERPRINT = "corpus_version", "corpus_fingerprint"
_POSITIONS = "positions"
# The settings that a checkpoint records, and the bindings that set them.
_BINDINGS = {
  "seed": "SEED",
  "batch_size": "BATCH_SIZE",
  "num_searched": "NUM_CANDIDATES or NUM_SEARCHED",
  "save_every_steps": "SAVE_EVERY_STEPS, REFRESH_EVERY_STEPS and "
  "WAIT_FOR_GENERATIONS",
  "lag_steps": "LAG_STEPS and WAIT_FOR_GENERATIONS",
  "held_out_blocks": "HELD_OUT_BLOCKS",
}

# The item `loop`, as it is saved and restored.
LoopItem = dict[str, np.ndarray | np.integer | jax.Array]


@dataclasses.dataclass(frozen=True)
class RunIdentity:
  """What a run must share with the checkpoint that it continues from.

  Attributes:
    num_searched: Number of blocks retrieved for a query; 0 without an index.
    save_every_steps: Distance of the generations that are used, in a run that
      waits for them, by default that of checkpoints; otherwise 0.
    lag_steps: Lag of generations in a run that waits for them; otherwise 0.
    vocabulary: SHA-256 of the corpus's vocabulary, in hexadecimal.
    corpus_version: Version of the examples' corpus that the run began with,
      and keeps until it ends.
  """

  seed: int
  batch_size: int
  num_searched: int
  save_every_steps: int
  lag_steps: int
  held_out_blocks: int
  vocabulary: str
  corpus_version: int
  corpus_fingerprint: str

  def to_item(self) -> LoopItem:
    """Returns the identity as arrays."""
    return {
      **{name: np.int64(getattr(self, name)) for name in _BINDINGS},
      loop_item.VOCABULARY: loop_item.digest_bytes(self.vocabulary),
      _CORPUS_VERSION: np.int64(self.corpus_version),
      _CORPUS_FINGERPRINT: loop_item.digest_bytes(self.corpus_fingerprint),
    }

  def require_same(self, item: LoopItem, checkpoint: str) -> None:
    """Checks what a checkpoint records against this run.

    Raises:
      CheckpointError: The checkpoint was made with other settings, or before
        each row of the batch had a position of its own.
    """
    if _POSITIONS not in item:
      raise CheckpointError(
        f"{checkpoint} has one position in the data for all rows of the batch, "
        "as checkpoints had before each row read a stream of its own, and "
        "cannot be continued exactly; give it as INITIAL_CHECKPOINT, and this "
        "run another MODEL_DIR"
      )
    for name, binding in _BINDINGS.items():
      recorded, wanted = int(item[name]), getattr(self, name)
      if recorded != wanted:
        raise CheckpointError(
          f"{checkpoint} was trained with {name}={recorded}, not {wanted}, "
          f"and cannot be continued exactly: give {binding} as before, or "
          "another MODEL_DIR"
        )


def recorded_corpus(store: CheckpointStore, step: int) -> tuple[int, str]:
  """Returns the corpus version that a run began with, and its fingerprint.

  Raises:
    CheckpointError: The checkpoint does not record it, or cannot be read.
  """
  item = store.restore(step, items=("loop",))["loop"]
  if _CORPUS_VERSION not in item:
    raise CheckpointError(
      f"{store.directory}/{step} does not record the corpus version that its "
      "run began with, so that it cannot be continued exactly; give it as "
      "INITIAL_CHECKPOINT, and this run another MODEL_DIR"
    )
  fingerprint = np.asarray(item[_CORPUS_FINGERPRINT], np.uint8).tobytes()
  return int(item[_CORPUS_VERSION]), fingerprint.hex()


class RetrievedIds(NamedTuple):
  """Retrieved blocks by their ids, which survive updates of the corpus."""

  ids: Int64[np.ndarray, "b k"]
  scores: Float32[np.ndarray, "b k"]

  @classmethod
  def of(cls, retrieved: SearchResult, corpus: Corpus) -> "RetrievedIds":
    """Returns the ids of retrieved rows of a corpus version."""
    return cls(corpus.block_ids[retrieved.rows], retrieved.scores)

  def in_rows(self, corpus: Corpus) -> SearchResult | None:
    """Returns the rows in a corpus version; None if one is not there."""
    rows = corpus.rows_of(self.ids)
    is_gone = (rows == NULL_ROW).any()
    return None if is_gone else SearchResult(rows=rows, scores=self.scores)


class OwnVectors(NamedTuple):
  """The index that a run keeps itself, as a checkpoint has it.

  Attributes:
    dated: The vectors of all blocks: the item `vectors`.
    corpus_fingerprint: SHA-256 of the corpus version that they are of.
  """

  dated: DatedVectors
  corpus_fingerprint: str


class LoopState(NamedTuple):
  """State of the loop between two steps.

  Attributes:
    positions: Positions in the data from which the rows of this process go
      on, in the next step.
    generation: Step of the generation in use; None of a run without any.
    retrieved: Blocks that were retrieved for the next step's queries of this
      process; None if they have to be searched.
    own: Vectors of a run that keeps its own index; None of one that does not,
      or has not begun.
  """

  positions: Int64[np.ndarray, " b"]
  generation: int | None = None
  retrieved: RetrievedIds | None = None
  own: OwnVectors | None = None

  def to_item(self, mesh: Mesh) -> LoopItem:
    """Returns the state as arrays, those of the global batch on the devices."""
    item: LoopItem = {**loop_item.generation_record(self.generation)}
    if self.own is not None:
      fingerprint = self.own.corpus_fingerprint
      item[loop_item.VECTORS_CORPUS] = loop_item.digest_bytes(fingerprint)
    # Each process has its own rows.
    arrays: dict[str, np.ndarray] = {_POSITIONS: _to_words(self.positions)}
    if self.retrieved is not None and self.retrieved.ids.size:
      arrays["ids"] = _to_words(self.retrieved.ids)
      arrays["scores"] = self.retrieved.scores
    return item | sharding.to_devices(arrays, mesh)

  @classmethod
  def from_item(cls, item: LoopItem, mesh: Mesh) -> "LoopState":
    """Returns the state that arrays hold, with this process's rows."""
    retrieved = None
    if "ids" in item:
      retrieved = RetrievedIds(
        ids=_from_words(sharding.own_rows(np.asarray(item["ids"]), mesh)),
        scores=sharding.own_rows(np.asarray(item["scores"]), mesh),
      )
    generation = loop_item.recorded_generation(item)
    words = sharding.own_rows(np.asarray(item[_POSITIONS]), mesh)
    return cls(_from_words(words), generation, retrieved)


def _to_words(numbers: Int64[np.ndarray, "*s"]) -> Int32[np.ndarray, "*s 2"]:
  """Splits numbers in two, for devices, which have no 64-bit integers."""
  words = np.ascontiguousarray(numbers).view(np.int32)
  return words.reshape(*numbers.shape, 2)


def _from_words(words: Int32[np.ndarray, "*s 2"]) -> Int64[np.ndarray, "*s"]:
  """Returns the numbers that `_to_words` has split."""
  return np.ascontiguousarray(words).view(np.int64)[..., 0]
