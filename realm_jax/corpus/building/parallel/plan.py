"""The plan of shards: which documents of which parts each of them holds.

It follows from the order of the input and from counts of blocks, whichever
processes made the parts. It also finds what no part can know by itself: ids
that occur again, and duplicate blocks.
"""

import collections
import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.corpus.building.parallel.parts import Part, read_part
from realm_jax.corpus.building.sources.document_source import DocumentSource
from realm_jax.corpus.building.sources.seen_ids import SeenIds
from realm_jax.corpus.building.summary import BuildSummary
from realm_jax.corpus.shards.blocks import shard_cuts


class PartSlice(NamedTuple):
  """Documents `[first, limit)` of a part.

  `repeats` has those whose contents occur earlier, and how often.
  """

  path: str
  first: int
  limit: int
  repeats: dict[int, int]


class ShardPlan(NamedTuple):
  """What a shard holds, in order; `removed` are positions of duplicates."""

  number: int
  slices: list[PartSlice]
  removed: Int[np.ndarray, " r"]


class ShardPlanner:
  """Plans shards from parts, which are added in the order of the input.

  Attributes:
    summary: Counts of what the corpus has and of what was left out.

  Sixteen bytes of memory are used for each document, eight for each block, and
  24 more for each block while duplicates are found.
  """

  def __init__(self, source: DocumentSource, *, blocks_per_shard: int):
    self.summary = BuildSummary()
    self._source = source
    self._blocks_per_shard = blocks_per_shard
    self._seen = SeenIds()
    self._repeats = collections.Counter[int]()
    self._shards: list[list[PartSlice]] = []
    self._sizes: list[int] = []
    self._hashes: list[Int[np.ndarray, " n"]] = []

  def add(self, path: str) -> Part:
    """Adds a part, and returns it.

    Raises:
      InputError: A row is malformed or repeats an id, unless such rows are
        skipped. It is the first one of the input.
    """
    part = read_part(path)
    repeats = self._count_rows(part)
    kept = np.setdiff1d(
      np.arange(part.built.blocks.num_documents),
      part.row_documents[list(repeats.refused)],
    )
    self.summary.add(part.built, kept)
    self._add_slices(part, kept, repeats.numbered)
    return part

  def _count_rows(self, part: Part) -> "_Repeats":
    """Checks ids in the order of rows, and counts rows without blocks."""
    earlier: dict[int, int] = {}
    keys = part.keys.tolist()
    for row, (key, position) in enumerate(
      zip(keys, part.positions.tolist(), strict=True)
    ):
      found = self._seen.add_key(key, position)
      if found is not None:
        earlier[row] = found
    repeats = _Repeats({}, set())
    left_out = dict(part.left_out)
    malformed = [(p, -1, error) for p, error in part.malformed]
    repeated = [(int(part.positions[row]), row, "") for row in earlier]
    for position, row, error in sorted(malformed + repeated):
      if row < 0:
        self._source.refuse_malformed(position, error, self.summary)
      elif self._source.file_of(position).numbers_repeats:
        self._repeats[keys[row]] += 1
        document = int(part.row_documents[row])
        repeats.numbered[document] = self._repeats[keys[row]]
      else:
        repeats.refused.add(row)
        left_out.pop(position, None)
        document_id, title = part.names[row]
        self._source.refuse_repeated(
          position,
          earlier[row],
          document_id=document_id,
          title=title,
          summary=self.summary,
        )
    self.summary.skipped.update(left_out.values())
    return repeats

  def _add_slices(
    self, part: Part, kept: Int[np.ndarray, " k"], numbered: dict[int, int]
  ) -> None:
    blocks = part.built.blocks
    sizes = blocks.blocks_per_document[kept]
    cuts = shard_cuts(
      sizes,
      filled=self._sizes[-1] if self._sizes else self._blocks_per_shard,
      blocks_per_shard=self._blocks_per_shard,
    )
    bounds = dict.fromkeys([0, *cuts, len(kept)])
    for first, limit in itertools.pairwise(bounds):
      if first in cuts:
        self._shards.append([])
        self._sizes.append(0)
      self._sizes[-1] += int(sizes[first:limit].sum())
      # Documents that are left out separate runs of those that are kept.
      documents = kept[first:limit]
      runs = np.flatnonzero(np.diff(documents) > 1) + 1
      for run in np.split(documents, runs):
        start, end = int(run[0]), int(run[-1]) + 1
        repeats = {d: n for d, n in numbered.items() if start <= d < end}
        self._shards[-1].append(PartSlice(part.path, start, end, repeats))
    hashes = blocks.arrays["content_hashes"]
    if len(kept) == blocks.num_documents:
      self._hashes.append(hashes)
    else:
      self._hashes.append(
        hashes[np.isin(_owners(blocks.blocks_per_document), kept)]
      )

  def shards(self, *, remove_duplicates: bool) -> list[ShardPlan]:
    """Returns the shards, and counts blocks that equal an earlier one."""
    is_duplicate = _repeated(np.concatenate([np.zeros(0, int), *self._hashes]))
    self.summary.duplicate_blocks = int(is_duplicate.sum())
    starts = np.cumsum([0, *self._sizes]).tolist()
    plans = []
    for number, slices in enumerate(self._shards):
      removed = np.zeros(0, np.int64)
      if remove_duplicates:
        first, limit = starts[number : number + 2]
        removed = np.flatnonzero(is_duplicate[first:limit])
      plans.append(ShardPlan(number, slices, removed))
    if remove_duplicates:
      self.summary.remove_duplicates()
    return plans


class _Repeats(NamedTuple):
  """Documents that get a number, and rows that are refused."""

  numbered: dict[int, int]
  refused: set[int]


def _owners(sizes: Int[np.ndarray, " d"]) -> Int[np.ndarray, " n"]:
  return np.repeat(np.arange(len(sizes)), sizes)


def _repeated(values: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
  """Returns which values equal an earlier one."""
  order = np.argsort(values, kind="stable")
  ordered = values[order]
  repeated = np.zeros(len(values), bool)
  repeated[order[1:]] = ordered[1:] == ordered[:-1]
  return repeated
