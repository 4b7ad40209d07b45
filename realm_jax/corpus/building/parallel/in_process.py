"""A build on this machine, in this process or in some that it starts.

This process reads the rows and plans the shards, which takes a few percent of
the time; the others parse, tokenize, tag and write.
"""

import collections
import contextlib
import dataclasses
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import TypeVar

from realm_jax.corpus.building.parallel.parts import PartMaker
from realm_jax.corpus.building.parallel.plan import ShardPlan
from realm_jax.corpus.building.parallel.shards import ShardMaker
from realm_jax.corpus.building.sources.input_file import (
  Chunk,
  InputFile,
  read_chunks,
)
from realm_jax.corpus.errors import CorpusError

# Chunks that wait for each worker, so that none waits for the reader.
_CHUNKS_PER_WORKER = 2

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class InProcess:
  """Runs a build in `workers` processes; with 1, in this one."""

  workers: int = 1
  stops_at_malformed: bool = False
  uses_other_machines: bool = False

  def __post_init__(self) -> None:
    if self.workers < 1:
      raise CorpusError(f"--workers={self.workers}; give 1 or more")

  @contextlib.contextmanager
  def start(self, make_part: PartMaker) -> "Iterator[_Run]":
    """Starts the workers. They share nothing with this process."""
    if self.workers == 1:
      yield _Run(make_part, None, 1)
      return
    pool = futures.ProcessPoolExecutor(
      self.workers,
      mp_context=multiprocessing.get_context("spawn"),
      initializer=_set_part_maker,
      initargs=(make_part,),
    )
    try:
      yield _Run(_make_part, pool, self.workers)
    finally:
      pool.shutdown(cancel_futures=True)


@dataclasses.dataclass(frozen=True)
class _Run:
  make_part: Callable[[Chunk], str]
  pool: futures.Executor | None
  workers: int

  def make_parts(self, files: Sequence[InputFile]) -> Iterator[str]:
    """Makes the parts of all files; yields their paths in order."""
    chunks = (c for i, file in enumerate(files) for c in read_chunks(i, file))
    return self._map(self.make_part, chunks)

  def make_shards(self, make: ShardMaker, plans: Sequence[ShardPlan]) -> None:
    """Makes all shards."""
    for _ in self._map(make, iter(plans)):
      pass

  def _map(
    self, function: Callable[[_Item], _Result], items: Iterator[_Item]
  ) -> Iterator[_Result]:
    """Yields results in order, and reads few items ahead."""
    if self.pool is None:
      yield from map(function, items)
      return
    waiting = collections.deque[futures.Future[_Result]]()
    for item in items:
      waiting.append(self.pool.submit(function, item))
      if len(waiting) > _CHUNKS_PER_WORKER * self.workers:
        yield waiting.popleft().result()
    while waiting:
      yield waiting.popleft().result()


# Set in each worker when it starts: the vocabulary need not follow each chunk.
_part_maker: PartMaker | None = None


def _set_part_maker(make_part: PartMaker) -> None:
  global _part_maker
  _part_maker = make_part


def _make_part(chunk: Chunk) -> str:
  assert _part_maker is not None
  return _part_maker(chunk)
