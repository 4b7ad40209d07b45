"""Features of tasks: token ids of the run's vocabulary, and plain numbers."""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from realm_jax.inputs.config import current_context
from realm_jax.text.vocabulary import BertVocabulary

# Length of a feature if seqio gets no `sequence_length`.
_UNLIMITED = 1 << 30


def wordpieces() -> BertVocabulary:
  """Returns the run's vocabulary; raises `TaskError` without a context."""
  return current_context().corpus.vocabulary


class CorpusVocabulary(seqio.PassThroughVocabulary):
  """Vocabulary of features of token ids, which `wordpieces()` decodes."""


def token_feature() -> seqio.Feature:
  """Returns a feature of token ids, to which seqio appends no end token."""
  return seqio.Feature(CorpusVocabulary(size=0), add_eos=False)


def plain_feature(dtype: tf.DType, *, rank: int) -> seqio.Feature:
  """Returns a feature of numbers that are not token ids."""
  return seqio.Feature(
    seqio.PassThroughVocabulary(size=0), add_eos=False, dtype=dtype, rank=rank
  )


def feature_length(name: str, sequence_length: Mapping[str, int] | None) -> int:
  """Returns a feature's largest length in seqio's `sequence_length`."""
  length = (sequence_length or {}).get(name)
  return _UNLIMITED if length is None else length
