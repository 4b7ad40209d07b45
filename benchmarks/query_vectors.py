"""Queries as a generation's own tower embeds them."""

import functools

import jax
import numpy as np
from jaxtyping import Float32

from realm_jax.generations.build.recall import held_out_queries
from realm_jax.generations.follow.loading import Generation
from realm_jax.models.retriever import Retriever, embed_queries

_BATCH = 256


def query_vectors(
  *, retriever: Retriever, generation: Generation, count: int, length: int
) -> Float32[np.ndarray, "q d"]:
  """Sentences of random blocks, as a generation's own tower embeds them.

  Args:
    retriever: the towers, for any vocabulary.
    generation: whose tower embeds.
    count: of the queries.
    length: of a query, in wordpieces.
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
