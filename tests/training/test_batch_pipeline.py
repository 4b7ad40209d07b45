"""The stream of batches: what it reads, searches, replaces and remembers."""

import contextlib
import threading
import types
from typing import ClassVar

import numpy as np
import pytest

from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.snapshots.loading import Snapshot
from realm_jax.training.batch_pipeline import BatchPipeline
from realm_jax.training.checkpointing import (
  LoopState,
  RetrievedIds,
  StepRecord,
)
from realm_jax.training.compiled_steps import RunSetup
from realm_jax.training.config import MeshConfig
from realm_jax.training.decisions import Decisions
from realm_jax.training.index_schedule import IndexSchedule
from realm_jax.training.retrieval import Retrieval
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.reading import ReadingBatch
from realm_jax.training.stages.stage import ExampleArrays
from tests.training import tiny

BATCH, K = 8, 2


class Words(Corpus):
  """A corpus in which ids are 100 more than rows, of which -1 is none."""

  version = 1
  block_ids = 100 + np.arange(20)

  def __init__(self):
    pass

  def rows_of(self, ids):
    return (np.asarray(ids) - 100).astype(np.int32)


class HostIndex:
  """Returns the rows after the first word of a query."""

  kind, num_blocks, needs_vectors = "host", 20, True
  report: ClassVar[dict[str, int]] = {}

  def search(self, queries, k):
    rows = queries.token_ids[:, :1] + np.arange(k, dtype=np.int32)
    return SearchResult(rows.astype(np.int32), np.ones(rows.shape, np.float32))


def _faked(kind, **fields):
  """An object of a class that has these fields alone."""
  fake = object.__new__(kind)
  vars(fake).update(fields)
  return fake


def _snapshot(step):
  return _faked(
    Snapshot,
    step=step,
    manifest=types.SimpleNamespace(oldest_step=0),
    corpus=Words(),
    index=HostIndex(),
    query_params={},
  )


class Schedule(IndexSchedule):
  """Snapshots of steps, by default ten times as many."""

  def __init__(self, step_of=lambda step: 10 * step):
    self._step_of = step_of
    self.recorded = []

  def at(self, step, *, recorded=None, agreed=None):
    del agreed
    self.recorded.append(recorded)
    self._current = _snapshot(self._step_of(step))
    return self._current

  def offer(self):
    return None, None

  def was_searched(self, snapshot):
    pass


def _features(batch, retrieved, context):
  """A batch that holds the retrieved rows as masked tokens."""
  query = batch.arrays["query"]
  blocks = np.zeros((len(query), 1, 1), np.int32)
  masks = MaskTargets.none(ExampleArrays(query, blocks, 0, 0, K))
  masks = masks._replace(token_ids=retrieved.rows)
  return ReadingBatch(query, blocks, masks), {}


def _positions(number):
  """Where each row of a batch is in the data."""
  return BATCH * number + np.arange(BATCH)


def _examples(start):
  for number in range(start, 100):
    query = np.full((BATCH, tiny.QUERY), number + 1, np.int32)
    next_positions = _positions(number + 1)
    yield Batch({"query": query}, {}, _positions(number), next_positions)


@pytest.fixture
def open_stream(monkeypatch):
  """Opens streams over fakes, and closes their threads."""
  monkeypatch.setattr(
    "realm_jax.training.batch_pipeline.embed_queries",
    lambda retriever, params, token_ids: token_ids.astype(np.float32),
  )
  stack = contextlib.ExitStack()

  def open_stream(
    schedule, *, resumed=None, start_step=0, depth=1, num_searches=1
  ):
    resumed = resumed or LoopState(_positions(0))
    stage = types.SimpleNamespace(
      retrieval=Retrieval(K, current_queries=False),
      needs_answers=False,
      num_searches=num_searches,
      hops=False,
      next_queries=lambda batch, found, context: np.repeat(
        found.rows[:, 1:], tiny.QUERY, axis=1
      ),
      joined_results=lambda before, found: found,
      features=_features,
    )
    config = types.SimpleNamespace(
      model_dir="none",
      num_steps=100,
      stage=stage,
      stages=(stage,),
      stage_of=lambda step: 0,
      prefix_of=lambda stage: "",
      data=types.SimpleNamespace(block_length=tiny.BLOCK),
      mesh=MeshConfig(),
      retrieve_on_device=False,
    )
    setup = _faked(
      RunSetup,
      config=config,
      examples=Words(),
      corpus=Words(),
      mesh=make_mesh(),
      components=tiny.components(),
      num_searched=K,
    )
    stream = BatchPipeline(
      setup,
      [_examples(resumed.positions[0] // BATCH)],
      schedule=schedule,
      decisions=Decisions(
        threading.Event(), num_steps=100, save_every_steps=10
      ),
      start_step=start_step,
      resumed=resumed,
      depth=depth,
    )
    return stack.enter_context(contextlib.closing(stream))

  with stack:
    yield open_stream


def _rows(stream, *steps):
  """The rows that were retrieved for steps, for their first query."""
  batches = [stream.take(step, {}).batch for step in steps]
  return [np.asarray(batch.masks.token_ids)[0].tolist() for batch in batches]


@pytest.mark.parametrize(
  ("ids", "snapshot", "rows"),
  [
    ([107, 108], 5, [7, 8]),
    ([107, 108], 6, [4, 5]),
    # A block is gone from the corpus of the snapshot, which was rebuilt.
    ([107, 99], 5, [4, 5]),
  ],
)
def test_a_resumed_stream_repeats_no_search_of_the_same_snapshot(
  open_stream, ids, snapshot, rows
):
  ids = np.tile(np.array([ids]), (BATCH, 1))
  retrieved = RetrievedIds(ids, np.ones(ids.shape, np.float32))
  resumed = LoopState(_positions(3), (StepRecord(5, retrieved),))
  schedule = Schedule(lambda step: snapshot)
  stream = open_stream(schedule, resumed=resumed, start_step=3)
  assert _rows(stream, 3) == [rows]
  assert schedule.recorded == [5, None]
  assert _rows(stream, 4) == [[5, 6]]


def test_a_checkpoint_keeps_all_steps_that_are_in_preparation(open_stream):
  stream = open_stream(Schedule(), depth=3)
  _rows(stream, 0, 1)
  state = stream.state(2)
  assert [one.snapshot for one in state.next_steps] == [20, 30, 40]
  expected = _rows(stream, *range(2, 7))
  # The later steps are searched again, and find the same.
  schedule = Schedule()
  again = open_stream(schedule, resumed=state, start_step=2, depth=3)
  found = _rows(again, *range(2, 7))
  assert found == expected
  assert schedule.recorded[:4] == [20, 30, 40, None]


def test_a_stage_may_search_again_for_what_it_has_found(open_stream):
  def open_at(step, **settings):
    return open_stream(
      Schedule(), start_step=step, depth=4, num_searches=3, **settings
    )

  stream = open_at(0)
  found = _rows(stream, *range(3))
  # Each search finds the row after the first word, which the last has found.
  assert found == [[3, 4], [4, 5], [5, 6]]
  state = stream.state(3)
  assert [one.searches for one in state.next_steps] == [3, 2, 1, 1]
  expected = _rows(stream, *range(3, 9))
  again = open_at(3, resumed=state)
  found = _rows(again, *range(3, 9))
  assert found == expected
