"""Searches of a trained run that are counted, or that break off."""

import contextlib
import math
from collections.abc import Iterator
from unittest import mock

from realm_jax.evaluation.run import TrainedRun


class BrokenOffError(Exception):
  """What ends an evaluation in the middle, as a kill does."""


@contextlib.contextmanager
def counted_searches(limit: float = math.inf) -> Iterator[list[int]]:
  """Yields the numbers of queries of the searches in the block.

  The search after `limit` raises a `BrokenOffError`, which ends the block.
  """
  counts: list[int] = []
  search = TrainedRun.search

  def counted(run, token_ids, *arguments):
    if len(counts) == limit:
      raise BrokenOffError
    counts.append(len(token_ids))
    return search(run, token_ids, *arguments)

  with (
    contextlib.suppress(BrokenOffError),
    mock.patch.object(TrainedRun, "search", counted),
  ):
    yield counts
