"""Prepares the batches of a run, with their candidates, ahead of the steps."""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from absl import logging
from jaxtyping import Int, Int64

from realm_jax.answers.run_answers import RunAnswers
from realm_jax.corpus.store import NULL_ROW
from realm_jax.indexes.exact import ExactIndex
from realm_jax.indexes.protocol import (
  QueryBatch,
  RetrievalUnavailableError,
  SearchResult,
  WaitPreemptedError,
)
from realm_jax.inputs.batch import Batch
from realm_jax.models.components import embed_hop_queries, embed_queries
from realm_jax.models.parameters import Params
from realm_jax.partitioning import sharding
from realm_jax.partitioning.agreement import Agreement
from realm_jax.snapshots.loading import Snapshot
from realm_jax.training.block_arrays import SearchedBlocks
from realm_jax.training.checkpointing import LoopState, RetrievedIds, StepRecord
from realm_jax.training.compiled_steps import RunSetup
from realm_jax.training.decisions import Decisions
from realm_jax.training.index_schedule import DeviceSnapshot, IndexSchedule
from realm_jax.training.rolling_index import RollingIndex
from realm_jax.training.search_in_step import look_up_vectors
from realm_jax.training.stages.stage import (
  StageContext,
  StepBatch,
  StepOnHost,
)


@dataclasses.dataclass(frozen=True)
class Prepared:
  """A step's batch on the devices, and the metrics of the host.

  Attributes:
    searched: Vectors and blocks to search, if the step does its own retrieval.
    agreed: Newer snapshot that every process has loaded by now, if any; a later
      step may search it.
  """

  batch: StepBatch
  metrics: dict[str, float]
  searched: SearchedBlocks | None = None
  agreed: Snapshot | None = None


@dataclasses.dataclass
class _InFlight:
  """A step whose batch is being prepared.

  Attributes:
    stage: Number of the step's stage; 0 is the main one.
    positions: Positions in the data of the step's examples and, for the other
      stages, of their next examples.
    searches: Number of searches that have begun.
    retrieved: Results of these searches, as the stage joins them; None if
      nothing is retrieved, or the step does its own retrieval.
    following: Queries of the next search, if there is one.
    metrics: Metrics of the host, filled in while the batch is prepared.
  """

  step: int
  stage: int
  examples: Batch
  positions: Int64[np.ndarray, "b *s"]
  snapshot: Snapshot | None
  searches: int = 0
  retrieved: Future[SearchResult | None] = dataclasses.field(init=False)
  following: Future[Int[np.ndarray, "b q"]] = dataclasses.field(init=False)
  prepared: Future[Prepared] = dataclasses.field(init=False)
  metrics: dict[str, float] = dataclasses.field(default_factory=dict)

  def record(self) -> StepRecord:
    """Returns the step's record for a checkpoint, once the host has searched.

    A step that does its own retrieval needs no record of blocks: resumed with
    the same parameters, it finds the same ones.
    """
    assert self.snapshot is not None
    results = self.retrieved.result()
    if results is None:
      return StepRecord(self.snapshot.step)
    ids = self.snapshot.corpus.block_ids[results.rows]
    retrieved = RetrievedIds(ids, results.scores)
    return StepRecord(self.snapshot.step, retrieved, self.searches)


class BatchPipeline:
  """Prepares batches with their candidates, in the order of the steps.

  The host reads the examples, searches, and gathers the blocks' tokens. If the
  step does its own retrieval, the host only reads the examples.

  Only the caller's thread dispatches programs to the devices, always in the
  same order: they contain collectives, which all processes must reach in the
  same order. Work of the host alone (a search in ScaNN or BM25, the gathering
  of tokens) runs in one background thread while steps compute.

  If a step needs several searches, each begins a fixed number of steps ahead,
  so that a resumed run repeats it with the same parameters.

  There is no `schedule` for a stage without an index, or for a run with a
  rolling index.

  Args:
    streams: Streams of examples, one for each stage.
    start_step: The run's next step.
    resumed: Loop state before that step; the streams begin at its positions.
    depth: Number of steps that are prepared while a step computes. Queries are
      embedded with parameters that are `depth` steps old, and a preempted run
      ends `depth` steps later.
  """

  def __init__(
    self,
    setup: RunSetup,
    streams: Sequence[Iterator[Batch]],
    *,
    schedule: IndexSchedule | None,
    decisions: Decisions,
    start_step: int,
    resumed: LoopState,
    rolling_index: RollingIndex | None = None,
    depth: int = 1,
  ):
    config = setup.config
    self._setup = setup
    # The main stage, which alone retrieves.
    self._stage = config.stage
    self._searches_in_step = config.retrieve_on_device
    self._streams = streams
    self._schedule = schedule
    self._decisions = decisions
    self._rolling_index = rolling_index
    self._depth = depth
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
    self._next_step = start_step
    self._recorded = collections.deque(resumed.next_steps)
    # Positions of the next examples to read.
    self._positions = resumed.positions
    # The step that was taken last, and the steps in preparation.
    self._in_flight: dict[int, _InFlight] = {}
    rules, retriever = config.mesh.all_axis_rules, setup.components.retriever
    # For the first search, and for the following ones.
    self._embed = [
      jax.jit(
        sharding.under(rules, embed, retriever),
        out_shardings=sharding.batch_sharding(setup.mesh),
      )
      for embed in (
        embed_queries,
        embed_hop_queries if self._stage.hops else embed_queries,
      )
    ]
    self._thread = ThreadPoolExecutor(1, thread_name_prefix="retrieval")

  def close(self) -> None:
    """Ends the background thread."""
    self._thread.shutdown(wait=True, cancel_futures=True)

  def take(self, step: int, params: Params) -> Prepared:
    """Waits for the batch of a step, and begins to prepare the next batches.

    Steps are taken in order. The current parameters may be donated once this
    returns. Stored vectors that the devices hold are looked up there.

    Raises:
      RetrievalUnavailableError: A next step has no snapshot to search. The run
        can be saved as it was before `step`.
      IndexCrashedError: The index's process has ended.
    """
    self._begin_until(step + self._depth, params)
    self._search_again(step, params)
    self._in_flight.pop(step - 1, None)
    entry = self._in_flight[step]
    prepared = entry.prepared.result()
    if self._schedule is not None and entry.snapshot is not None:
      self._schedule.was_searched(entry.snapshot)
    if not entry.stage:
      prepared = self._with_vectors(prepared, entry.snapshot)
    self._begin_until(step + 1 + self._depth, params, prepared.agreed)
    return prepared

  def state(self, step: int) -> LoopState:
    """Returns the loop state from which a resumed run continues at a step.

    `step` is the step taken last or the next one, or the end of the run.
    """
    entries = [one for one in self._in_flight.values() if one.step >= step]
    positions = entries[0].positions if entries else self._positions
    if self._schedule is None:
      corpus = self._setup.corpus
      indexed = None if self._rolling_index is None else corpus.fingerprint
      return LoopState(positions, indexed_corpus=indexed)
    records = [entry.record() for entry in entries]
    in_use = StepRecord(self._schedule.current.step)
    return LoopState(positions, tuple(records) or (in_use,))

  def _begin_until(
    self, end: int, params: Params, agreed: Snapshot | None = None
  ) -> None:
    """Begins to prepare all steps before `end` that have not begun."""
    while self._next_step < min(end, self._setup.config.num_steps):
      self._begin(self._next_step, params, agreed)
      self._next_step += 1

  def _begin(self, step: int, params: Params, agreed: Snapshot | None) -> None:
    recorded = self._recorded.popleft() if self._recorded else None
    snapshot = None
    if self._schedule is not None:
      used = None if recorded is None else recorded.snapshot
      snapshot = self._schedule.at(step, recorded=used, agreed=agreed)
    stage, positions = self._setup.config.stage_of(step), self._positions
    examples = next(self._streams[stage])
    entry = _InFlight(step, stage, examples, positions, snapshot)
    self._positions = examples.next_positions
    if len(self._streams) > 1:
      self._positions = positions.copy()
      self._positions[:, stage] = examples.next_positions
    results = self._recorded_blocks(recorded, snapshot)
    if results is not None:
      assert recorded is not None
      self._retrieve(entry, recorded.searches, lambda: results)
    elif snapshot is None or self._searches_in_step or stage:
      self._retrieve(entry, self._stage.num_searches, lambda: None)
    else:
      search = self._search(examples.arrays["query"], snapshot, params)
      self._retrieve(entry, 1, search)
    self._in_flight[step] = entry

  def _search_again(self, step: int, params: Params) -> None:
    """Begins the second and later searches that are due at a step."""
    number = self._stage.num_searches
    for entry in self._in_flight.values():
      while (missing := number - entry.searches) > 0 and (
        entry.step <= step + self._depth * missing // number
      ):
        assert entry.snapshot is not None
        queries = entry.following.result()
        search = self._search(queries, entry.snapshot, params, is_first=False)
        self._retrieve(entry, entry.searches + 1, search, entry.retrieved)

  def _retrieve(
    self,
    entry: _InFlight,
    searches: int,
    search: Callable[[], SearchResult | None],
    before: Future[SearchResult | None] | None = None,
  ) -> None:
    """Searches in the background thread, and prepares the batch from it.

    The results of the search `before` are joined with the new ones. If more
    searches follow, the next queries are prepared instead of the batch.
    """
    submit, entry.searches = self._thread.submit, searches
    entry.retrieved = submit(self._found, entry, search, before)
    if searches < self._stage.num_searches:
      entry.following = submit(self._next_queries, entry, entry.retrieved)
    else:
      entry.prepared = submit(self._prepare, entry)

  def _search(
    self,
    queries: Int[np.ndarray, "b q"],
    snapshot: Snapshot,
    params: Params,
    *,
    is_first: bool = True,
  ) -> Callable[[], SearchResult]:
    """Starts the on-device part of a search.

    Returns a function that finishes the search on the host.
    """
    index, num_blocks = snapshot.index, self._setup.num_searched
    vectors = None
    if index.needs_vectors:
      vectors = self._vectors(queries, snapshot, params, is_first=is_first)
    if isinstance(index, ExactIndex):
      assert vectors is not None
      on_devices = index.search_on_device(vectors, num_blocks)

      def fetch() -> SearchResult:
        scores, rows = map(sharding.local_rows, on_devices)
        return SearchResult(rows=rows, scores=scores)

      return fetch

    def search() -> SearchResult:
      local_vectors = None if vectors is None else sharding.local_rows(vectors)
      return index.search(QueryBatch(queries, local_vectors), num_blocks)

    return search

  def _vectors(
    self,
    queries: Int[np.ndarray, "b q"],
    snapshot: Snapshot,
    params: Params,
    *,
    is_first: bool,
  ) -> jax.Array:
    """Dispatches the embedding of queries."""
    tower, mesh = snapshot.query_params, self._setup.mesh
    retrieval = self._stage.retrieval
    if retrieval is not None and retrieval.current_queries:
      retriever = self._setup.components.retriever
      tower = retriever.query_tower_parameters(params["retriever"])
    with jax.set_mesh(mesh):
      embed = self._embed[0 if is_first else 1]
      return embed(tower, sharding.to_devices(queries, mesh))

  def _found(
    self,
    entry: _InFlight,
    search: Callable[[], SearchResult | None],
    before: Future[SearchResult | None] | None,
  ) -> SearchResult | None:
    start = time.perf_counter()
    results = search()
    earlier = None if before is None else before.result()
    if results is not None and earlier is not None:
      results = self._stage.joined_results(earlier, results)
    if results is not None:
      known = entry.metrics.get("search_ms", 0.0)
      entry.metrics["search_ms"] = known + 1e3 * (time.perf_counter() - start)
    return results

  def _next_queries(
    self, entry: _InFlight, retrieved: Future[SearchResult | None]
  ) -> Int[np.ndarray, "b q"]:
    results = retrieved.result()
    assert results is not None
    context = self._context(entry)
    return self._stage.next_queries(entry.examples, results, context)

  def _context(self, entry: _InFlight) -> StageContext:
    setup, snapshot = self._setup, entry.snapshot
    corpus = setup.corpus if snapshot is None else snapshot.corpus
    return StageContext(
      setup.components,
      corpus,
      snapshot,
      setup.config.data.block_length,
      examples=setup.examples,
      answers=None if self._answers is None else self._answers.of(corpus),
      step=StepOnHost(
        setup.config.model_dir,
        entry.step,
        self._decisions.preempted_anywhere.is_set,
      ),
    )

  def _prepare(self, entry: _InFlight) -> Prepared:
    """Makes a step's batch from the retrieved blocks, in the background."""
    snapshot, setup = entry.snapshot, self._setup
    context = self._context(entry)
    retrieved = entry.retrieved.result()
    start = time.perf_counter()
    stage = setup.config.stages[entry.stage]
    batch, metrics, reason = None, dict[str, float](), None
    try:
      batch, metrics = stage.features(entry.examples, retrieved, context)
    except RetrievalUnavailableError as error:
      reason = error
    prefix = setup.config.prefix_of(entry.stage)
    metrics = {prefix + name: value for name, value in metrics.items()}
    if snapshot is not None:
      metrics["staleness_steps"] = entry.step - snapshot.oldest_step
      metrics["snapshot"] = snapshot.step
    if self._stage.retrieval is not None:
      metrics["corpus_version"] = context.corpus.version
    offered, refused = None, None
    if self._schedule is not None:
      offered, refused = self._schedule.offer()
    decision = self._decisions.of_step(
      entry.step,
      snapshot=None if offered is None else offered.step,
      refused=refused,
      abandoned=reason is not None,
      metrics=metrics,
    )
    if decision.abandoned:
      given_up = "another process has given up this step, as its log says"
      kind = WaitPreemptedError if decision.stop else RetrievalUnavailableError
      raise reason or kind(given_up)
    placed = sharding.to_devices(batch, setup.mesh)
    if retrieved is not None:
      entry.metrics["gather_ms"] = 1e3 * (time.perf_counter() - start)
    searched = None
    if isinstance(snapshot, DeviceSnapshot) and not entry.stage:
      searched = snapshot.searched
    elif self._rolling_index is not None and not entry.stage:
      searched = self._rolling_index.searched
    return Prepared(
      placed,
      {**decision.metrics, **entry.metrics},
      searched,
      agreed=None if decision.snapshot is None else offered,
    )

  def _with_vectors(
    self, prepared: Prepared, snapshot: Snapshot | None
  ) -> Prepared:
    """Looks up the stored vectors of the blocks, if the devices hold them."""
    retrieval = self._stage.retrieval
    if snapshot is None or retrieval is None or retrieval.reads != "vectors":
      return prepared
    if (vectors := snapshot.device_vectors) is None:
      return prepared
    looked_up = look_up_vectors(
      prepared.batch.retrieved, vectors, mesh=self._setup.mesh
    )
    batch = prepared.batch._replace(retrieved=looked_up)
    return dataclasses.replace(prepared, batch=batch)

  def _recorded_blocks(
    self, recorded: StepRecord | None, snapshot: Snapshot | None
  ) -> SearchResult | None:
    """Returns the blocks that a checkpoint recorded, if for this snapshot."""
    if recorded is None or recorded.retrieved is None or snapshot is None:
      return None
    if recorded.snapshot != snapshot.step:
      return None
    rows = snapshot.corpus.rows_of(recorded.retrieved.ids)
    # A search involves all devices, so all processes must repeat it or none.
    is_gone = bool((rows == NULL_ROW).any())
    if self._decisions.loop.exchange("recorded blocks", is_gone, any):
      logging.warning(
        "snapshot %d was rebuilt with other blocks: searching it again",
        snapshot.step,
      )
      return None
    return SearchResult(rows=rows, scores=recorded.retrieved.scores)
