"""Features of tasks: token ids of the run's vocabulary, and plain numbers."""

from collections.abc import Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from realm_jax.inputs.config import current_context
from realm_jax.text.wordpieces import WordpieceVocabulary

# Length of a feature if seqio is asked for examples without lengths.
_UNLIMITED = 1 << 30


def wordpieces() -> WordpieceVocabulary:
  """Returns the run's vocabulary; raises `TaskError` without a context."""
  return current_context().corpus.vocabulary


class CorpusVocabulary(seqio.Vocabulary):
  """The vocabulary of the run's corpus, opened when it is first needed."""

  def __eq__(self, other: object) -> bool:
    return isinstance(other, CorpusVocabulary)

  def __hash__(self) -> int:
    return hash(CorpusVocabulary)

  @property
  def eos_id(self) -> int | None:
    return wordpieces().eos_id

  @property
  def unk_id(self) -> int | None:
    return wordpieces().unk_id

  @property
  def _base_vocab_size(self) -> int:
    return wordpieces().vocab_size

  def _encode(self, s: str) -> Sequence[int]:
    return wordpieces().encode(s)

  def _decode(self, ids: Sequence[int | np.integer]) -> str:
    return wordpieces().decode([int(i) for i in ids])

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    return wordpieces().encode_tf(s)

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    return wordpieces().decode_tf(ids)


def token_feature() -> seqio.Feature:
  """Returns a feature of token ids, to which seqio appends no end token."""
  return seqio.Feature(CorpusVocabulary(), add_eos=False)


def plain_feature(dtype: tf.DType, *, rank: int) -> seqio.Feature:
  """Returns a feature of numbers that are not token ids."""
  return seqio.Feature(
    seqio.PassThroughVocabulary(size=0), add_eos=False, dtype=dtype, rank=rank
  )


def feature_length(name: str, sequence_length: Mapping[str, int] | None) -> int:
  """Returns a feature's largest length in seqio's `sequence_length`."""
  length = (sequence_length or {}).get(name)
  return _UNLIMITED if length is None else length
