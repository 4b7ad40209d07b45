"""A beam search over the links of a corpus, scored by a path retriever."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.models.path_retriever import (
  PATH_RETRIEVER,
  next_states,
  pair_vectors,
)
from realm_jax.settings import NonNegativeInt, PositiveInt, require_valid


class _Path(NamedTuple):
  """A path of a beam.

  Attributes:
    query: Index of the query.
    rows: Blocks of the path.
    score: Log probability: the sum of log P(i | h_t) over the steps.
    state: State h_t in which the next step is chosen.
    others: Blocks that may come next, in addition to links of the last block.
    is_whole: Whether the end was chosen.
  """

  query: int
  rows: tuple[int, ...]
  score: float
  state: Float32[np.ndarray, " d"]
  others: tuple[int, ...]
  is_whole: bool = False


@dataclasses.dataclass(frozen=True)
class BeamOverLinks:
  """Searches paths as Asai et al. 2020 do (section 3.1.1); a `PathSearch`.

  A path begins with a retrieved block. It continues with a block that its last
  one links to, or with one of the `num_others` best blocks of the previous
  step, or it ends. The end of a path of `max_hops` blocks is not scored.

  Attributes:
    beam: Number of paths that are kept in each step, and thus returned.
    max_hops: Maximum number of blocks of a path.
    num_seeds: Number of blocks with which a path may begin.
    num_others: Number of best blocks of a step that may also come next.
    max_links: Maximum number of links of a block, the first in its text.
    within_documents: Whether blocks of one document are linked to each other.
  """

  beam: PositiveInt = 8
  max_hops: PositiveInt = 3
  num_seeds: PositiveInt = 100
  num_others: NonNegativeInt = 2
  max_links: PositiveInt = 100
  within_documents: bool = False

  def __post_init__(self) -> None:
    require_valid(self)

  def search(
    self, run: Any, token_ids: Int32[np.ndarray, "n q"], k: int
  ) -> SearchResult:
    """Returns the k best paths of each query, at most `beam`.

    Raises:
      RealmError: The run has no path retriever.
    """
    module, params = run.components[PATH_RETRIEVER], run.params[PATH_RETRIEVER]
    start, end = map(
      np.asarray, module.apply({"params": params}, method="ends")
    )
    bias = float(params["bias"][0])
    seeds = run.search_blocks(token_ids, self.num_seeds).rows
    paths = [
      _Path(query, (), 0.0, start, tuple(rows))
      for query, rows in enumerate(seeds.tolist())
    ]
    grown = [[path] for path in paths]
    # Vectors w of a query with each block that has been scored.
    known = dict[tuple[int, int], Float32[np.ndarray, " d"]]()
    for hop in range(self.max_hops):
      if hop:
        last = np.stack([known[path.query, path.rows[-1]] for path in paths])
        states = np.stack([path.state for path in paths])
        states = run.compute(
          next_states, module, params, states=states, vectors=last
        )
        moved = zip(paths, states, strict=True)
        paths = [path._replace(state=state) for path, state in moved]
      options = self._options(run, paths)
      pairs = [
        (path.query, row)
        for path, rows in zip(paths, options, strict=True)
        for row in rows
      ]
      if new := [one for one in dict.fromkeys(pairs) if one not in known]:
        queries, rows = np.array(new).T
        texts = token_ids[queries], run.gather(rows)
        vectors = run.compute_pairs(PATH_RETRIEVER, pair_vectors, *texts)
        known |= zip(new, vectors, strict=True)
      grown = [[] for _ in grown]
      for path, rows in zip(paths, options, strict=True):
        if path.is_whole:
          grown[path.query].append(path)
          continue
        vectors = np.stack([end, *(known[path.query, row] for row in rows)])
        logits = vectors @ path.state + bias
        scores = path.score - np.logaddexp(0, -logits)
        if path.rows:
          ended = path._replace(score=float(scores[0]), is_whole=True)
          grown[path.query].append(ended)
        best = np.argsort(-scores[1:], kind="stable")[: self.num_others]
        others = tuple(rows[place] for place in best)
        grown[path.query] += [
          path._replace(rows=(*path.rows, row), score=score, others=others)
          for row, score in zip(rows, scores[1:].tolist(), strict=True)
        ]
      for of_query in grown:
        of_query.sort(key=lambda path: (-path.score, path.rows))
      paths = [path for of_query in grown for path in of_query[: self.beam]]
    width = min(k, self.beam, *map(len, grown))
    best = np.full((len(grown), width, self.max_hops), NULL_ROW, np.int32)
    for of_query, blocks in zip(grown, best, strict=True):
      for path, rows in zip(of_query, blocks, strict=False):
        rows[: len(path.rows)] = path.rows
    scores = [[path.score for path in of_query[:width]] for of_query in grown]
    return SearchResult(best[..., 0], np.array(scores, "f4"), paths=best)

  def _options(self, run: Any, paths: Sequence[_Path]) -> list[list[int]]:
    """Returns the blocks that may come next on each path."""
    lasts = [*{path.rows[-1] for path in paths if path.rows}]
    leads = neighbours(
      run.corpus, lasts, within_documents=self.within_documents
    )
    after = dict(zip(lasts, leads, strict=True))
    options, allowed = list[list[int]](), run.searchable
    for path in paths:
      rows = [*path.others]
      if path.rows:
        rows = [*after[path.rows[-1]][: self.max_links].tolist(), *rows]
      options.append(
        [
          row
          for row in dict.fromkeys(() if path.is_whole else rows)
          if row not in path.rows and allowed[row]
        ]
      )
    return options


def neighbours(
  corpus: Corpus, rows: Sequence[int], *, within_documents: bool
) -> list[Int[np.ndarray, " t"]]:
  """Returns the blocks that each block links to, in order.

  With `within_documents`, the other blocks of its document follow.
  """
  row_numbers = np.asarray(rows, np.int32)
  kinds_of_edges = [corpus.edges(row_numbers)]
  if within_documents:
    kinds_of_edges.append(corpus.siblings(row_numbers))
  parts = [
    np.split(edges.targets, edges.offsets[1:])[:-1] for edges in kinds_of_edges
  ]
  return [np.concatenate(of_row) for of_row in zip(*parts, strict=True)]
