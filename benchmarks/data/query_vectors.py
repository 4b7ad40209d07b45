"""Query vectors of a generation's own tower."""

import functools

import jax
import numpy as np
from jaxtyping import Float32

from realm_jax.generations.building.recall import held_out_queries
from realm_jax.generations.follow.loading import Generation
from realm_jax.models.retriever import Retriever, embed_queries

_BATCH = 256


def query_vectors(
  *, retriever: Retriever, generation: Generation, count: int, length: int
) -> Float32[np.ndarray, "q d"]:
  """Embeds sentences of random blocks with a generation's own query tower.

  Args:
    retriever: Towers, for any vocabulary.
    generation: Generation whose tower embeds.
    count: Number of queries.
    length: Length of a query in wordpieces.
  """
  corpus = generation.corpus
  towers = retriever.for_vocabulary(
    vocab_size=corpus.vocab_size, separator_id=corpus.vocabulary.sep_id
  )
  queries = held_out_queries(corpus, count=count, query_length=length)
  embed = jax.jit(functools.partial(embed_queries, towers))
  return np.concatenate(
    [
      np.asarray(
        embed(generation.query_params, queries[start : start + _BATCH]),
        np.float32,
      )
      for start in range(0, count, _BATCH)
    ]
  )
