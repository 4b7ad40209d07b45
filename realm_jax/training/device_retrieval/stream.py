"""The stream of batches whose candidates the step itself retrieves."""

import dataclasses
import functools
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from realm_jax.indexes.exact_search import Plan
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.models.parameters import Params
from realm_jax.retrieval.pipeline import (
  NOTHING_RETRIEVED,
  Prepared,
  RetrievalPipeline,
  Retrieve,
)
from realm_jax.training.batches import (
  RetrievingBatch,
  Searched,
  StepBatch,
  UnretrievedBatch,
)
from realm_jax.training.checkpointing import LoopState, OwnVectors
from realm_jax.training.decisions import Decisions, StepFacts
from realm_jax.training.stages.pretraining import Pretraining


@runtime_checkable
class IndexInUse(Protocol):
  """What one step searches."""

  @property
  def generation(self) -> int | None:
    """Step of the generation; None of a run that keeps its own index."""
    ...

  def metrics(self, step: int) -> dict[str, float]:
    """Returns what the host knows of a step's index."""
    ...

  def searched(self) -> Searched:
    """Returns the arrays, once the step before was dispatched."""
    ...

  def plan(self, num_queries: int) -> Plan:
    """Returns the settings of the search."""
    ...


@runtime_checkable
class SearchedIndex(Protocol):
  """The index of a run: of generations that are swapped in, or its own."""

  @property
  def swaps(self) -> int:
    """Number of generations that were swapped in."""
    ...

  @property
  def own(self) -> OwnVectors | None:
    """What a checkpoint keeps of such a run, once it has begun."""
    ...

  def at(self, step: int, params: Params) -> IndexInUse:
    """Returns what a step searches; steps are asked for in order.

    Raises:
      What `GenerationSchedule.start` and `at` raise.
    """
    ...

  def loaded(self) -> int | None:
    """Returns which generation this process could swap in."""
    ...


@dataclasses.dataclass
class _InFlight:
  """A step's examples on their way to the devices.

  `positions` are those in the data at which its rows go on.
  """

  positions: Int64[np.ndarray, " b"]
  index: IndexInUse
  pending: Future[Prepared[StepBatch]]


class DeviceCandidateStream:
  """Batches of which the host reads the examples, and the step the rest.

  `examples` begin at `positions`, the first that is not yet read. A resumed run
  retrieves again what its step had retrieved, with the same parameters, so a
  checkpoint keeps no candidates.
  """

  def __init__(
    self,
    stage: Pretraining,
    examples: Iterator[Batch],
    *,
    positions: Int64[np.ndarray, " b"],
    pipeline: RetrievalPipeline[StepBatch],
    index: SearchedIndex,
    decisions: Decisions,
  ):
    self._stage = stage
    self._examples = examples
    self._positions = positions
    self._pipeline = pipeline
    self._index = index
    self._decisions = decisions
    self._in_use: IndexInUse | None = None
    # The step that was taken last and the one that was prefetched.
    self._in_flight: dict[int, _InFlight] = {}

  @property
  def swaps(self) -> int:
    return self._index.swaps

  def prefetch(self, step: int, params: Params) -> None:
    self._in_use = index = self._index.at(step, params)
    examples = next(self._examples)
    prepare = functools.partial(self._prepare, step, examples, index)
    pending = self._pipeline.without_search(prepare)
    self._in_flight[step] = _InFlight(self._positions, index, pending)
    self._positions = examples.next_positions

  def _prepare(
    self,
    step: int,
    examples: Batch,
    index: IndexInUse,
    retrieve: Retrieve,
  ) -> tuple[SearchResult, StepBatch, dict[str, float]]:
    """Makes a step's examples, and agrees with all processes on the step."""
    del retrieve
    facts = StepFacts(
      0, self._index.loaded(), crashed=None, metrics=index.metrics(step)
    )
    decision = self._decisions.of_step(step, facts)
    return (
      NOTHING_RETRIEVED,
      self._stage.unretrieved(examples),
      decision.metrics,
    )

  def take(self, step: int) -> Prepared[StepBatch]:
    self._in_flight.pop(step - 1, None)
    entry = self._in_flight[step]
    prepared = entry.pending.result()
    examples = prepared.batch
    assert isinstance(examples, UnretrievedBatch)
    batch = RetrievingBatch(
      examples=examples,
      searched=entry.index.searched(),
      plan=entry.index.plan(num_queries=len(examples.query)),
    )
    return Prepared(batch, prepared.retrieved, prepared.metrics)

  def state(self, step: int) -> LoopState:
    positions, index = self._positions, self._in_use
    if entry := self._in_flight.get(step):
      positions, index = entry.positions, entry.index
    assert index is not None, "prefetch a step first"
    return LoopState(positions, index.generation, own=self._index.own)
