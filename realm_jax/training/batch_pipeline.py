"""The stream of a run's batches with their candidates, one step ahead."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from absl import logging
from jaxtyping import Int64

from realm_jax.answers.run_answers import RunAnswers
from realm_jax.corpus.store import NULL_ROW
from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.protocol import (
  Index,
  QueryBatch,
  SearchResult,
)
from realm_jax.inputs.batch import Batch
from realm_jax.models.parameters import Params
from realm_jax.models.retriever import embed_queries, query_tower_parameters
from realm_jax.partitioning import sharding
from realm_jax.partitioning.agreement import Agreement
from realm_jax.snapshots.loading import Snapshot
from realm_jax.training.checkpointing import LoopState, RetrievedIds
from realm_jax.training.compiled_steps import RunSetup
from realm_jax.training.decisions import Decisions
from realm_jax.training.index_schedule import DeviceSnapshot, IndexSchedule
from realm_jax.training.rolling_index import RollingIndex
from realm_jax.training.search_in_step import SearchedBlocks, look_up_vectors
from realm_jax.training.stages.stage import StageContext, StepBatch


@dataclasses.dataclass(frozen=True)
class Prepared:
  """A step's batch on the devices, and the metrics of the host.

  Attributes:
    retrieved: Blocks that the host has retrieved, if it has. A checkpoint keeps
      them, so that a resumed run need not search with parameters that no longer
      exist.
    searched: What the step searches, if it retrieves its own candidates.
  """

  batch: StepBatch
  metrics: dict[str, float]
  retrieved: SearchResult | None = None
  searched: SearchedBlocks | None = None


@dataclasses.dataclass
class _InFlight:
  """A step's batch that is being prepared.

  `positions` are those in the data at which its rows go on, and `vectors` has
  its queries' vectors, on the devices, if the host searches an index that needs
  them.
  """

  step: int
  examples: Batch
  positions: Int64[np.ndarray, " b"]
  snapshot: Snapshot | None
  vectors: jax.Array | None = None
  pending: Future[Prepared] = dataclasses.field(init=False)


class BatchPipeline:
  """Batches with their candidates, in the order of the steps.

  The host reads the examples, searches and gathers; or it only reads them, and
  the step searches.

  Programs for the devices are dispatched by the caller's thread alone, always
  in the same order: they contain collectives, which all processes must reach in
  the same order. What only the host does (a search in ScaNN or BM25, the
  gathering of tokens) runs in one background thread while a step computes.

  The examples begin at the positions of `resumed`, the state before the run's
  next step. There is no schedule of a stage without an index, and of a run that
  keeps its own.
  """

  def __init__(
    self,
    setup: RunSetup,
    examples: Iterator[Batch],
    *,
    schedule: IndexSchedule | None,
    decisions: Decisions,
    resumed: LoopState,
    rolling_index: RollingIndex | None = None,
  ):
    config = setup.config
    self._setup = setup
    self._stage = config.stage
    self._searches_in_step = config.retrieve_on_device
    self._examples = examples
    self._schedule = schedule
    self._decisions = decisions
    self._rolling_index = rolling_index
    self._answers: RunAnswers | None = None
    if self._stage.needs_answers:
      data = dataclasses.replace(
        config.data, corpus_version=setup.corpus.version
      )
      self._answers = RunAnswers(
        config.model_dir, data, agreement=Agreement("answers")
      )
      # This runs while the first snapshot is built.
      self._answers.of(setup.corpus)
    self._resumed: LoopState | None = resumed
    self._positions = resumed.positions
    # The step that was taken last and the one that was prefetched.
    self._in_flight: dict[int, _InFlight] = {}
    self._embed_queries = jax.jit(
      sharding.under(
        config.mesh.all_axis_rules, embed_queries, setup.components.retriever
      ),
      out_shardings=sharding.batch_sharding(setup.mesh),
    )
    self._thread = ThreadPoolExecutor(1, thread_name_prefix="retrieval")

  def close(self) -> None:
    """Ends the background thread."""
    self._thread.shutdown(wait=True, cancel_futures=True)

  def prefetch(self, step: int, params: Params) -> None:
    """Starts to prepare the batch of the step after the last prefetched.

    The current parameters may be donated once this returns.

    Raises:
      RetrievalUnavailableError: There is nothing to search; the stream has not
        moved on.
    """
    resumed, snapshot = self._resumed, None
    if self._schedule is not None:
      if resumed is not None:
        snapshot = self._schedule.start(step, resumed.snapshot)
      else:
        snapshot = self._schedule.at(step)
    self._resumed = None
    examples = next(self._examples)
    entry = _InFlight(step, examples, self._positions, snapshot)
    self._positions = examples.next_positions
    retrieved = _still_valid(resumed, snapshot)
    if retrieved is None:
      self._embed(entry, params)
    search = None
    if snapshot is not None and not self._searches_in_step:
      search = self._search(entry, snapshot.index, retrieved)
    entry.pending = self._thread.submit(self._prepare, entry, search)
    self._in_flight[step] = entry

  def _embed(self, entry: _InFlight, params: Params) -> None:
    """Dispatches the embedding of the queries, for an index that needs it."""
    snapshot, mesh = entry.snapshot, self._setup.mesh
    if snapshot is None or self._searches_in_step:
      return
    if not snapshot.index.needs_vectors:
      return
    tower = snapshot.query_params
    retrieval = self._stage.retrieval
    if retrieval is not None and retrieval.current_queries:
      tower = query_tower_parameters(
        self._setup.components.retriever, params["retriever"]
      )
    with jax.set_mesh(mesh):
      entry.vectors = self._embed_queries(
        tower, sharding.to_devices(entry.examples.arrays["query"], mesh)
      )

  def _search(
    self, entry: _InFlight, index: Index, retrieved: SearchResult | None
  ) -> Callable[[], SearchResult]:
    """Starts the on-device part of a search, and returns the host's part."""
    if retrieved is not None:
      return lambda: retrieved
    num_blocks, vectors = self._setup.num_searched, entry.vectors
    if isinstance(index, ExactIndex):
      assert vectors is not None
      found = index.search_on_device(vectors, num_blocks)

      def fetch() -> SearchResult:
        scores, rows = map(sharding.local_rows, found)
        return SearchResult(rows=rows, scores=scores)

      return fetch

    def search() -> SearchResult:
      own = None if vectors is None else sharding.local_rows(vectors)
      queries = QueryBatch(entry.examples.arrays["query"], own)
      return index.search(queries, num_blocks)

    return search

  def _prepare(
    self, entry: _InFlight, search: Callable[[], SearchResult] | None
  ) -> Prepared:
    """Searches, and makes a step's batch."""
    snapshot, setup = entry.snapshot, self._setup
    corpus = setup.corpus if snapshot is None else snapshot.corpus
    context = StageContext(
      setup.components,
      corpus,
      snapshot,
      setup.config.data.block_length,
      examples=setup.examples,
      answers=None if self._answers is None else self._answers.of(corpus),
    )
    retrieved = None
    start = found_at = time.perf_counter()
    if search is not None:
      retrieved = search()
      found_at = time.perf_counter()
    batch, metrics = self._stage.features(entry.examples, retrieved, context)
    if snapshot is not None:
      metrics["staleness_steps"] = entry.step - snapshot.oldest_step
      metrics["snapshot"] = snapshot.step
    if self._stage.retrieval is not None:
      metrics["corpus_version"] = corpus.version
    loaded, refused = None, None
    if self._schedule is not None:
      loaded, refused = self._schedule.loaded()
    decision = self._decisions.of_step(
      entry.step, snapshot=loaded, refused=refused, metrics=metrics
    )
    placed = sharding.to_devices(batch, setup.mesh)
    metrics = decision.metrics
    if search is not None:
      metrics["search_ms"] = 1e3 * (found_at - start)
      metrics["gather_ms"] = 1e3 * (time.perf_counter() - found_at)
    searched = None
    if isinstance(snapshot, DeviceSnapshot):
      searched = snapshot.searched
    elif self._rolling_index is not None:
      searched = self._rolling_index.searched
    return Prepared(placed, metrics, retrieved, searched)

  def take(self, step: int) -> Prepared:
    """Waits for the batch of a step that was prefetched.

    Stored vectors that the devices hold are looked up there.

    Raises:
      IndexCrashedError: The process of its index has ended.
    """
    self._in_flight.pop(step - 1, None)
    entry = self._in_flight[step]
    prepared, snapshot = entry.pending.result(), entry.snapshot
    retrieval = self._stage.retrieval
    if snapshot is None or retrieval is None or retrieval.reads != "vectors":
      return prepared
    if (vectors := snapshot.device_vectors) is None:
      return prepared
    found = look_up_vectors(
      prepared.batch.retrieved, vectors, mesh=self._setup.mesh
    )
    batch = prepared.batch._replace(retrieved=found)
    return dataclasses.replace(prepared, batch=batch)

  def state(self, step: int) -> LoopState:
    """Returns the state with which a resumed stream begins at a step.

    `step` was taken or prefetched last, or is the end of the run.
    """
    entry = self._in_flight.get(step)
    positions = self._positions if entry is None else entry.positions
    if self._schedule is None:
      corpus = self._setup.corpus
      indexed = None if self._rolling_index is None else corpus.fingerprint
      return LoopState(positions, indexed_corpus=indexed)
    if entry is None:
      return LoopState(positions, self._schedule.current.step)
    # A step that searches itself retrieves the same again when it is resumed,
    # with the same parameters.
    found = entry.pending.result().retrieved
    snapshot = entry.snapshot
    assert snapshot is not None
    if found is None:
      return LoopState(positions, snapshot.step)
    ids = RetrievedIds(snapshot.corpus.block_ids[found.rows], found.scores)
    return LoopState(positions, snapshot.step, ids)


def _still_valid(
  resumed: LoopState | None, snapshot: Snapshot | None
) -> SearchResult | None:
  """Returns what a checkpoint has retrieved, if it is of this snapshot."""
  if resumed is None or resumed.retrieved is None or snapshot is None:
    return None
  if resumed.snapshot != snapshot.step:
    return None
  rows = snapshot.corpus.rows_of(resumed.retrieved.ids)
  if (rows == NULL_ROW).any():
    logging.warning(
      "snapshot %d was rebuilt with other blocks: searching it again",
      snapshot.step,
    )
    return None
  return SearchResult(rows=rows, scores=resumed.retrieved.scores)
