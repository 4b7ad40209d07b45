"""What tasks declare: features over the run's vocabulary, and their lengths."""

from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from realm_jax.inputs.context import current_context
from realm_jax.text.wordpieces import WordpieceVocabulary

# Where seqio is asked for examples without saying how long they may be.
_UNLIMITED = 1 << 30


def wordpieces() -> WordpieceVocabulary:
  """The run's vocabulary; raises `TaskError` outside `task_context`."""
  return current_context().corpus.vocabulary


class CorpusVocabulary(seqio.Vocabulary):
  """The vocabulary of the run's corpus, looked up when it is first needed."""

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

  def _decode(self, ids: Sequence[int]) -> str:
    return wordpieces().decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    return wordpieces().encode_tf(s)

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    return wordpieces().decode_tf(ids)


def token_feature() -> seqio.Feature:
  """A row of token ids of the run's corpus, without an end-of-sequence."""
  return seqio.Feature(CorpusVocabulary(), add_eos=False)


def plain_feature(dtype: tf.DType, *, rank: int) -> seqio.Feature:
  """Numbers that are not token ids."""
  return seqio.Feature(
    seqio.PassThroughVocabulary(size=0), add_eos=False, dtype=dtype, rank=rank
  )


def feature_length(name: str, sequence_length: Mapping[str, int] | None) -> int:
  """How long a feature may be, by the `sequence_length` seqio hands on."""
  length = (sequence_length or {}).get(name)
  return _UNLIMITED if length is None else length
