"""Starts a run from checkpoints, continues it, and saves it.

Besides parameters and optimizer, a checkpoint has the item `loop`, a flat
dictionary of arrays. It has the position of the loop (`LoopState`), and the
settings that a run must share with the checkpoint it continues from
(`RunIdentity`). Examples come from the corpus version with which the run began,
until it ends, so that their order stays the same.
"""

import contextlib
from collections.abc import Collection
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Float32, Int64, UInt32

from realm_jax.checkpoints.store import (
  READER_VOCABULARY,
  CheckpointError,
  CheckpointNotWrittenError,
  CheckpointStore,
  LoopItem,
  digest_bytes,
  locate,
  loop_record,
  recorded_snapshots,
)
from realm_jax.corpus import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.models import lora
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import HOP_TOWER, START_RETRIEVER
from realm_jax.partitioning import sharding
from realm_jax.training.config import CheckpointConfig
from realm_jax.training.encoder_inputs import to_words
from realm_jax.training.metrics import NonFiniteLossError
from realm_jax.training.state import TrainState
from realm_jax.weights.name_maps import SEPARATE_TOWERS, SHARED_TOWER

T = TypeVar("T")

# Version of the checkpoint format. Runs with another one cannot be continued.
_FORMAT = 5
# Padding of rows of retrieved ids, which are never negative.
_NO_ID = -1
# Components that have another name in the checkpoint from which a run starts.
_STORED_AS = {START_RETRIEVER: "retriever"}
# Values that a run must share with the checkpoint that it continues from. They
# are `_SETTINGS`, hexadecimal SHA-256 digests of its `vocabulary` and, for a
# reader with a view, of its `reader_vocabulary`, the `corpus_version` and
# `corpus_fingerprint` of its examples, and `searched_blocks`, the number of
# blocks at its start in the corpus that it searches.
RunIdentity: TypeAlias = dict[str, int | str]
# Settings that a run must keep, by their names in a checkpoint. A run that does
# not wait for snapshots records 0 for their distance and lag.
_SETTINGS = {
  "seed": "SEED",
  "batch_size": "BATCH_SIZE",
  "num_searched": "NUM_CANDIDATES or NUM_SEARCHED",
  "save_every_steps": "SAVE_EVERY_STEPS, REFRESH_EVERY_STEPS and "
  "WAIT_FOR_SNAPSHOTS",
  "lag_steps": "LAG_STEPS and WAIT_FOR_SNAPSHOTS",
  "steps_ahead": "STEPS_AHEAD",
  "held_out_blocks": "HELD_OUT_BLOCKS",
  "auxiliary_stages": "AUXILIARY",
}


def read_loop_item(
  store: CheckpointStore, step: int, vocabulary: str
) -> LoopItem:
  """Returns the item `loop` of a checkpoint, for a run that continues from it.

  Raises:
    CheckpointError: The checkpoint cannot be read, has another vocabulary, or
      has no such item in this format.
  """
  store.require_vocabulary(step, vocabulary)
  item = store.loop_item(step)
  if item.get("format") != _FORMAT:
    raise CheckpointError(
      f"{store.directory}/{step} was not saved by this version's trainer, and "
      "cannot be continued exactly; give it as INITIAL_CHECKPOINT, and this "
      "run another MODEL_DIR"
    )
  return item


def examples_of_run(
  model_dir: epath.PathLike, examples_dir: epath.PathLike
) -> tuple[Corpus, int | None]:
  """Opens the corpus version that a run began with; the newest for a new run.

  Also returns the number of blocks that the searched corpus had at the run's
  start; None for a new run.

  Raises:
    CorpusError: There is no corpus, or the version was removed.
    CheckpointError: The run has another vocabulary, or its checkpoint cannot be
      read.
  """
  newest = Corpus.open(examples_dir)
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    if not store.steps():
      return newest, None
    step = store.latest()
    item = read_loop_item(store, step, newest.vocab_sha256)
  version = int(item["corpus_version"])
  try:
    corpus = newest.at(version, bytes(item["corpus_fingerprint"]).hex())
  except CorpusError as error:
    raise CheckpointError(
      f"{store.directory}/{step} reads its examples from version {version} of "
      f"the corpus, and cannot be continued exactly: {error}. "
      "Restore that version, or give another MODEL_DIR and this one as "
      "INITIAL_CHECKPOINT"
    ) from error
  return corpus, int(item["searched_blocks"])


class RetrievedIds(NamedTuple):
  """Retrieved blocks by their ids, which survive updates of the corpus."""

  ids: Int64[np.ndarray, "b k"]
  scores: Float32[np.ndarray, "b k"]


class StepRecord(NamedTuple):
  """Record, in a checkpoint, of a step that was being prepared.

  Attributes:
    snapshot: Step of the snapshot that the step searches.
    retrieved: Blocks that were retrieved for the queries of this process, which
      a resumed run could not repeat without the earlier parameters. None if
      there was no search yet.
    searches: Number of searches that led to these blocks. A stage may search
      several times.
  """

  snapshot: int
  retrieved: RetrievedIds | None = None
  searches: int = 1


class LoopState(NamedTuple):
  """State of the loop between two steps.

  Attributes:
    positions: Positions in the data of this process's next rows, for each stage
      if there are several.
    next_steps: Records of the next steps, in order; the first has the snapshot
      in use. Empty for a run without snapshots.
    indexed_corpus: SHA-256 of the corpus version in the run's rolling index.
  """

  positions: Int64[np.ndarray, "b *s"]
  next_steps: tuple[StepRecord, ...] = ()
  indexed_corpus: str | None = None

  def to_item(self, mesh: Mesh) -> LoopItem:
    """Returns the state as arrays; arrays of the global batch are sharded."""
    rows: LoopItem = {"positions": to_words(self.positions)}
    retrieved = [one.retrieved for one in self.next_steps if one.retrieved]
    if retrieved and retrieved[0].ids.size:
      # After one search, a step has fewer blocks than after two.
      width = max(one.ids.shape[1] for one in retrieved)
      padding = [((0, 0), (0, width - one.ids.shape[1])) for one in retrieved]
      ids, scores = (
        [
          np.pad(getattr(one, name), pad, constant_values=_NO_ID)
          for one, pad in zip(retrieved, padding, strict=True)
        ]
        for name in ("ids", "scores")
      )
      rows["ids"] = to_words(np.stack(ids, axis=1))
      rows["scores"] = np.stack(scores, axis=1)
    searches = np.array([one.searches for one in self.next_steps], np.int64)
    corpus = self.indexed_corpus
    digests = {} if corpus is None else {"vectors_corpus": corpus}
    item = loop_record([one.snapshot for one in self.next_steps], **digests)
    if (searches > 1).any():
      item["searches"] = searches
    return item | sharding.to_devices(rows, mesh)

  @classmethod
  def from_item(cls, item: LoopItem, mesh: Mesh) -> "LoopState":
    """Returns the state from these arrays, with this process's rows."""
    rows = sharding.row_groups(mesh).local_rows(len(item["positions"]))
    positions = _from_words(np.asarray(item["positions"])[rows])
    records = [StepRecord(step) for step in recorded_snapshots(item)]
    if "ids" in item:
      ids = _from_words(np.asarray(item["ids"])[rows])
      scores = np.asarray(item["scores"])[rows]
      searches = np.asarray(item.get("searches", [1] * len(records))).tolist()
      for place, number in enumerate(searches):
        known = (ids[:, place] != _NO_ID).any(axis=0)
        retrieved = RetrievedIds(ids[:, place, known], scores[:, place, known])
        records[place] = StepRecord(records[place].snapshot, retrieved, number)
    return cls(positions, tuple(records))


class Checkpointer:
  """Initializes or restores the state of a run, and saves it.

  After a failed save, the next step is saved instead, up to `max_failures`
  times in a row. With 0, the first failure ends the run: a run that waits for
  snapshots of certain steps has no use for other checkpoints, and a run with
  several processes cannot save again, because orbax keeps the others in a
  barrier for up to ten minutes.

  Components in `required` must not start from random values.
  """

  def __init__(
    self,
    store: CheckpointStore,
    identity: RunIdentity,
    config: CheckpointConfig,
    *,
    max_failures: int = 3,
    required: Collection[str] = (),
  ):
    self._store = store
    self._required = required
    self._max_failures = max_failures
    self._vocabulary = str(identity["vocabulary"])
    self._reader_vocabulary = str(identity.get(READER_VOCABULARY, ""))
    self._own: LoopItem = {
      name: digest_bytes(x) if isinstance(x, str) else np.asarray(x, np.int64)
      for name, x in {"format": _FORMAT, **identity}.items()
    }
    self._config = config
    self.wait = store.wait

  def initialize_or_restore(
    self, state: TrainState
  ) -> tuple[TrainState, LoopState]:
    """Returns the state of the last checkpoint, or of a new run.

    `state` is a fresh state; if there is a checkpoint, it may be abstract.

    Raises:
      CheckpointError: A checkpoint does not fit, or was saved with other
        settings; or the run has only its first checkpoint, which was started
        from other sources.
    """
    store, mesh = self._store, _mesh_of(state)
    if not store.steps():
      rows = sharding.row_groups(mesh).local_rows(int(self._own["batch_size"]))
      params = self._load_initial(state.params)
      return state._replace(params=params), LoopState(rows.astype(np.int64))
    step = store.latest()
    item = read_loop_item(store, step, self._vocabulary)
    self._require_reader_vocabulary(store, step)
    for name, setting in _SETTINGS.items():
      before, now = item.get(name), self._own.get(name)
      if before != now:
        raise CheckpointError(
          f"{store.directory}/{step} was trained with {name}={before}, not "
          f"{now}, and cannot be continued exactly: give {setting} as before, "
          "or another MODEL_DIR"
        )
    like = _abstract({**state.params, "optimizer": state.optimizer})
    params = store.restore(step, items=tuple(like), like=like)
    optimizer = params.pop("optimizer")
    logging.info("continuing from checkpoint %d of %s", step, store.directory)
    if step == 0:
      self._require_started_from_sources(params)
    done = jax.device_put(np.int32(step), state.step.sharding)
    loop_state = LoopState.from_item(item, mesh)
    return TrainState(done, params, optimizer), loop_state

  def _require_reader_vocabulary(
    self, store: CheckpointStore, step: int
  ) -> None:
    if digest := self._reader_vocabulary:
      store.require_vocabulary(step, digest, name=READER_VOCABULARY)

  def _load_initial(self, params: Params) -> Params:
    """Replaces components with components of the initial checkpoints."""
    return {
      name: self._load_component(name, fresh) for name, fresh in params.items()
    }

  def _load_component(self, name: str, fresh: Params) -> Params:
    source = self._config.source_of(name)
    if source is None:
      if name in self._required:
        raise CheckpointError(
          f"the {name} is not trained here; give a run or an import that has "
          "one as INITIAL_CHECKPOINT"
        )
      return fresh
    store, step = locate(source)
    with contextlib.closing(store):
      present = store.components(step)
      store.require_vocabulary(step, self._vocabulary)
      if name == "reader":
        self._require_reader_vocabulary(store, step)
      if (stored := _STORED_AS.get(name, name)) in present:
        logging.info("%s starts from checkpoint %d of %s", name, step, source)
        return _with_stored_values(store, step, stored, fresh)
    is_named = name == "reader" and self._config.initial_reader
    if not present or is_named or name in self._required:
      raise CheckpointError(
        f"checkpoint {step} of {source} has no {name}, only {sorted(present)}; "
        "give another as INITIAL_CHECKPOINT or INITIAL_READER"
      )
    has_reader = "encoder" in fresh and "reader" in present
    if has_reader and "encoder" in store.stored(step, "reader"):
      logging.info("%s starts with the encoder of the reader", name)
      return _with_stored_values(store, step, "reader", fresh)
    logging.info(
      "%s starts from random values: checkpoint %d of %s has none",
      *(name, step, source),
    )
    return fresh

  def _require_started_from_sources(self, params: Params) -> None:
    """Checks that checkpoint 0, if it is the only one, has these sources."""
    for name, initial in self._load_initial(params).items():
      if initial is not params[name] and not _all_equal(params[name], initial):
        model_dir = self._store.directory.parent
        raise CheckpointError(
          f"{model_dir} was started before with another {name} than that of "
          f"{self._config.source_of(name)}, and its first snapshot may "
          f"exist; remove {model_dir}, or choose another MODEL_DIR"
        )

  def must_save_again(self) -> bool:
    """Returns whether the last save is known to have failed.

    Raises:
      CheckpointNotWrittenError: The save has failed too often.
    """
    try:
      self._store.check()
    except CheckpointNotWrittenError as error:
      if self._store.failures > self._max_failures:
        raise
      logging.warning("%s; saving again at this step", error)
      return True
    return False

  def save(self, state: TrainState, loop_state: LoopState) -> None:
    """Copies the state off the devices, and writes it in the background."""
    item = self._own | loop_state.to_item(_mesh_of(state))
    items = {**state.params, "optimizer": state.optimizer, "loop": item}
    if state.index is not None:
      items["vectors"] = state.index._asdict()
    self._store.save(int(state.step), items)

  def rolling_vectors(
    self, step: int, fingerprint: str, like: dict[str, jax.ShapeDtypeStruct]
  ) -> dict[str, jax.Array] | None:
    """Restores the rolling index's vectors as sharded arrays.

    Returns None if they cannot be read, belong to another corpus version, or
    have other padding, which depends on the number of devices.
    """
    store = self._store
    # A new run's checkpoint may still be being written.
    store.wait()
    if not store.has_vectors_of(step, fingerprint):
      return None
    abstract = {"vectors": like}
    try:
      return store.restore(step, items=("vectors",), like=abstract)["vectors"]
    except CheckpointError as error:
      logging.info("all blocks are embedded again: %s", error)
      return None

  def with_last_good(self, error: NonFiniteLossError) -> NonFiniteLossError:
    """Adds the checkpoint from which to continue to an error."""
    with contextlib.suppress(CheckpointNotWrittenError):
      self.wait()
    return NonFiniteLossError(
      f"{error}; the last good checkpoint, step {self._store.latest()} of "
      f"{self._store.directory}, is intact: continue from it with a lower "
      "learning rate"
    )


def _with_stored_values(
  store: CheckpointStore, step: int, item: str, fresh: Params
) -> Params:
  """Returns a component with the values of a stored one.

  Components with an `encoder`, such as readers, may have different heads; a
  head that the stored component lacks keeps its initial values. The tower for
  queries of a second search starts as a copy of the query tower.
  """
  stored, abstract = store.stored(step, item), _abstract(fresh)
  if HOP_TOWER in fresh and HOP_TOWER not in stored:
    first = {part: fresh[part] for part in fresh if part != HOP_TOWER}
    towers = _with_stored_values(store, step, item, first)
    tower = towers[
      SHARED_TOWER if SHARED_TOWER in towers else SEPARATE_TOWERS["query"]
    ]
    return {**towers, HOP_TOWER: jax.tree.map(jnp.copy, tower)}
  if "encoder" in fresh and "encoder" in stored:
    if lacking := [part for part in fresh if part not in stored]:
      logging.info("%s start from random values", ", ".join(lacking))
    # Orbax restores a component whole, including parameters that are not used.
    abstract = {
      part: abstract.get(
        part, jax.tree.map(lambda x: np.empty(x.shape, x.dtype), tree)
      )
      for part, tree in stored.items()
    }
  like = lora.to_restore(abstract, stored)
  loaded = store.restore(step, items=(item,), like={item: like})[item]
  kept = {part: tree for part, tree in loaded.items() if part in fresh}
  return lora.joined(kept, fresh)


@jax.jit
def _all_equal(one: Params, other: Params) -> jax.Array:
  """Returns whether two trees have the same values.

  This is a single program. Separate programs for the arrays could run at the
  same time, and the collectives of several processes would deadlock.
  """
  same = jax.tree.map(jnp.array_equal, one, other)
  return jnp.stack(jax.tree.leaves(same)).all()


def _abstract(tree: T) -> T:
  """Returns abstract arrays with the shardings of a tree's arrays."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
  )


def _mesh_of(state: TrainState) -> Mesh:
  placed = state.step.sharding
  assert isinstance(placed, NamedSharding)
  assert isinstance(placed.mesh, Mesh)
  return placed.mesh


def _from_words(words: UInt32[np.ndarray, "*s 2"]) -> Int64[np.ndarray, "*s"]:
  """Joins the integers that `to_words` split."""
  return np.ascontiguousarray(words).view(np.int64)[..., 0]
