"""The stream of batches whose candidates the step itself retrieves."""

import dataclasses
import functools
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
from jaxtyping import Int64

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
  StepBatch,
  UnretrievedBatch,
)
from realm_jax.training.decisions import Decisions, StepFacts
from realm_jax.training.device_retrieval.generations import DeviceGeneration
from realm_jax.training.loop_state import LoopState
from realm_jax.training.refresh.schedule import GenerationSchedule
from realm_jax.training.setup import RunSetup
from realm_jax.training.stages.pretraining import Pretraining


@dataclasses.dataclass
class _InFlight:
  """A step's examples on their way to the devices.

  `positions` are those in the data at which its rows go on.
  """

  positions: Int64[np.ndarray, " b"]
  generation: DeviceGeneration
  pending: Future[Prepared[StepBatch]]


class DeviceCandidateStream:
  """Batches of which the host reads the examples, and the step the rest.

  `examples` begin at the positions of `resumed`. A resumed run retrieves again
  what its step had retrieved, with the same parameters, so a checkpoint keeps
  no candidates.
  """

  def __init__(
    self,
    setup: RunSetup,
    examples: Iterator[Batch],
    *,
    pipeline: RetrievalPipeline[StepBatch],
    schedule: GenerationSchedule,
    decisions: Decisions,
    resumed: LoopState,
  ):
    stage = setup.config.stage
    assert isinstance(stage, Pretraining)
    self._stage = stage
    self._setup = setup
    self._examples = examples
    self._pipeline = pipeline
    self._schedule = schedule
    self._decisions = decisions
    self._resumed: LoopState | None = resumed
    self._positions = resumed.positions
    # The step that was taken last and the one that was prefetched.
    self._in_flight: dict[int, _InFlight] = {}

  @property
  def swaps(self) -> int:
    return self._schedule.swaps

  def prefetch(self, step: int, params: Params) -> None:
    del params
    if self._resumed is not None:
      generation = self._schedule.start(step, self._resumed.generation)
    else:
      generation = self._schedule.at(step)
    assert isinstance(generation, DeviceGeneration)
    self._resumed = None
    examples = next(self._examples)
    prepare = functools.partial(self._prepare, step, examples, generation)
    pending = self._pipeline.without_search(prepare)
    self._in_flight[step] = _InFlight(self._positions, generation, pending)
    self._positions = examples.next_positions

  def _prepare(
    self,
    step: int,
    examples: Batch,
    generation: DeviceGeneration,
    retrieve: Retrieve,
  ) -> tuple[SearchResult, StepBatch, dict[str, float]]:
    """Makes a step's examples, and agrees with all processes on the step."""
    del retrieve
    metrics = {
      "staleness_steps": float(step - generation.oldest_step),
      "generation": float(generation.step),
      "corpus_version": float(generation.corpus.version),
    }
    loaded = self._schedule.loaded()
    facts = StepFacts(0, loaded, crashed=None, metrics=metrics)
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
    examples, index = prepared.batch, entry.generation.exact_index
    assert isinstance(examples, UnretrievedBatch)
    batch = RetrievingBatch(
      examples=examples,
      searched=entry.generation.searched(
        current_queries=self._stage.current_queries
      ),
      plan=index.plan(
        self._setup.num_searched, num_queries=len(examples.query)
      ),
    )
    return Prepared(batch, prepared.retrieved, prepared.metrics)

  def state(self, step: int) -> LoopState:
    entry = self._in_flight.get(step)
    if entry is None:
      return LoopState(self._positions, self._schedule.current.step)
    return LoopState(entry.positions, entry.generation.step)
