"""Towers with random parameters, for the vocabulary of a corpus."""

from typing import Any

import numpy as np

from realm_jax.conversion.parameters import (
  fresh_parameters,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.planning import usual_reader
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.models.retriever import Retriever


def random_towers(
  retriever: Retriever, corpus: Corpus, *, seed: int = 0
) -> tuple[Retriever, Any]:
  """Returns the retriever for the corpus's vocabulary, and its parameters."""
  separator_id = int(corpus.gather(np.array([NULL_ROW]), 3)[0, 1])
  retriever = retriever.for_vocabulary(
    vocab_size=corpus.vocab_size, separator_id=separator_id
  )
  reader = usual_reader(retriever.bert)
  paths = parameter_shapes(retriever, reader, ("retriever",))
  values = fresh_parameters(retriever, reader, paths, seed=seed)
  return retriever, nested(values)["retriever"]
