"""Recall of an index against exact search, on sentences of the corpus."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from realm_jax.corpus.store import Corpus
from realm_jax.generations.store.embeddings import Embeddings
from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.protocol import Index, QueryBatch


def held_out_queries(
  corpus: Corpus, *, count: int, query_length: int, seed: int = 0
) -> Int32[np.ndarray, "b q"]:
  """Draws sentences of random blocks as queries: `[CLS] sentence [SEP]`."""
  rng = np.random.default_rng(seed)
  rows = rng.choice(corpus.num_blocks, count, replace=count > corpus.num_blocks)
  return corpus.random_sentences(rows, query_length, rng)


def measure_recall(
  index: Index, embeddings: Embeddings, queries: QueryBatch, ks: Sequence[int]
) -> dict[str, float]:
  """Measures recall@k against exact search; returns it by k, as text.

  A block counts as found if it scores no lower than exact search's k-th. Values
  of k above the number of blocks are skipped.
  """
  ks = [k for k in ks if k <= index.num_blocks]
  if not ks:
    return {}
  truth = GroundTruth(embeddings, queries, max(ks))
  return {str(k): truth.recall(index.search(queries, k)) for k in ks}
