"""Graphs of blocks: retrieved blocks, and the blocks that they link to."""

import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int, Int32

from realm_jax.corpus.links import Edges
from realm_jax.corpus.store import NULL_ROW, Corpus

# Kinds of edges. 0 is no edge; kinds from 2 on are the relations of links.
_SAME_DOCUMENT, _PLAIN_LINK = 1, 2


def expanded(
  corpus: Corpus,
  seeds: Int[np.ndarray, "b s"],
  size: int,
  *,
  allowed: Bool[np.ndarray, " n"] | None = None,
) -> Int32[np.ndarray, "b {size}"]:
  """Returns the blocks of a graph for each query: seeds, and their neighbors.

  The seeds come first. Then, in turn, each seed adds one of its neighbors:
  first the blocks that it links to, and then the others of its document. Blocks
  that are not `allowed` are left out. The result is padded to `size` with
  `NULL_ROW`.
  """
  rows = np.full((len(seeds), size), NULL_ROW, np.int32)
  flat = seeds.reshape(-1)
  linked, others = map(_targets, (corpus.edges(flat), corpus.siblings(flat)))
  neighbours = map(itertools.chain, linked, others)
  for graph, of_query in zip(rows, seeds.tolist(), strict=True):
    queues = itertools.islice(neighbours, len(of_query))
    turns = itertools.chain(*itertools.zip_longest(*queues))
    blocks = dict.fromkeys(itertools.chain(of_query, turns))
    kept = [row for row in blocks if row not in (None, NULL_ROW)]
    if allowed is not None:
      kept = [row for row in kept if allowed[row]]
    kept = kept[:size]
    graph[: len(kept)] = kept
  return rows


def edge_kinds(
  corpus: Corpus, rows: Int[np.ndarray, "b k"]
) -> Int32[np.ndarray, "b k k"]:
  """Returns the kind of the edge from each block of a graph to each other.

  It is 0 for no edge, 1 between blocks of one document, and otherwise 2 plus
  the index of the link's relation in `Corpus.relations`.
  """
  kinds = np.zeros((*rows.shape, rows.shape[1]), np.int32)
  flat = rows.reshape(-1)
  for edges, first in (
    (corpus.siblings(flat), _SAME_DOCUMENT),
    (corpus.edges(flat), _PLAIN_LINK),
  ):
    starts = np.repeat(np.arange(flat.size), np.diff(edges.offsets))
    query, place = np.divmod(starts, rows.shape[1])
    # Matches the targets of edges with blocks of the same graph.
    edge, end = np.nonzero(rows[query] == edges.targets[:, None])
    kinds[query[edge], place[edge], end] = first + edges.relations[edge]
  return kinds


def _targets(edges: Edges) -> Iterator[list[int]]:
  """Yields the targets of each block."""
  for start, limit in itertools.pairwise(edges.offsets.tolist()):
    yield edges.targets[start:limit].tolist()
