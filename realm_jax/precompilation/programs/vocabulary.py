"""Models for the vocabulary of a corpus, or of a recipe without one."""

from realm_jax.corpus.store import Corpus
from realm_jax.training.stages.model_inputs import Models

# BERT's vocabulary, where neither recipe nor corpus says another.
_VOCABULARY = {"vocab_size": 30_522, "separator_id": 102}


def for_vocabulary(models: Models, corpus: Corpus | None) -> Models:
  """Returns models for a corpus, or else for what their recipe binds."""
  if corpus is not None:
    return models.for_corpus(corpus)
  return Models(
    models.retriever.for_vocabulary(**_sizes_of(models.retriever.bert)),
    None
    if models.reader is None
    else models.reader.for_vocabulary(**_sizes_of(models.reader.bert)),
  )


def _sizes_of(bert: object) -> dict[str, int]:
  """Returns the vocabulary of a recipe, or BERT's where it binds none."""
  return {
    name: bound if (bound := getattr(bert, name)) is not None else usual
    for name, usual in _VOCABULARY.items()
  }
