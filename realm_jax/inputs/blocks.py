"""The blocks of a corpus as a seqio source."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from etils import epath
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.inputs.context import TaskError, current_context
from realm_jax.inputs.sources import Column, RandomAccessSource


class BlockRecords:
  """Blocks as records; `sentences` and `salient_spans` index `body_ids`.

  `salient_span_kinds` are names, which mean the same in every corpus.
  """

  spec: Mapping[str, tf.TensorSpec] = {
    "block_id": tf.TensorSpec((), tf.int64),
    "content_hash": tf.TensorSpec((), tf.int64),
    "title_ids": tf.TensorSpec((None,), tf.int32),
    "body_ids": tf.TensorSpec((None,), tf.int32),
    "sentences": tf.TensorSpec((None, 2), tf.int32),
    "salient_spans": tf.TensorSpec((None, 2), tf.int32),
    "salient_span_kinds": tf.TensorSpec((None,), tf.string),
  }

  def __init__(self, corpus: Corpus):
    self.corpus = corpus
    names = [kind.encode() for kind in corpus.span_kinds]
    self._kind_names = np.array(names, object)

  def __len__(self) -> int:
    return self.corpus.num_blocks

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Column]:
    """Reads blocks by row."""
    corpus, rows = self.corpus, indices.tolist()
    titled = [(corpus.token_ids(r), corpus.title_length(r)) for r in rows]
    return {
      "block_id": corpus.block_ids[indices],
      "content_hash": corpus.content_hashes[indices],
      "title_ids": [ids[:limit] for ids, limit in titled],
      "body_ids": [ids[limit:] for ids, limit in titled],
      "sentences": [corpus.sentences(row) for row in rows],
      "salient_spans": [corpus.salient_spans(row) for row in rows],
      "salient_span_kinds": [
        self._kind_names[corpus.salient_span_kinds(row)] for row in rows
      ],
    }


class CorpusSource(RandomAccessSource):
  """The blocks of a corpus, all in the split "train".

  Args:
    directory: Corpus whose sentences are learnt from while the run's own is
      searched, as REALM did with CC-News; both must have the same vocabulary.
      None reads the run's corpus.
    version: Version of that corpus; None opens the newest. A run resumes only
      in the version that it began with, so name one if the corpus is updated.
  """

  def __init__(
    self,
    directory: epath.PathLike | None = None,
    *,
    version: int | None = None,
  ):
    super().__init__(splits=("train",), caching_permitted=False)
    self._directory = directory
    self._version = version

  def __str__(self) -> str:
    return f"the corpus {self._directory or current_context().corpus_dir}"

  def open(self, split: str) -> BlockRecords:
    """Opens the corpus; raises `TaskError` if none is given."""
    context = current_context()
    if self._directory is None:
      return BlockRecords(context.corpus)
    own = Corpus.open(self._directory, version=self._version)
    if own.vocab_sha256 != context.corpus.vocab_sha256:
      raise TaskError(
        f"{self._directory} has another vocabulary than {context.corpus_dir}; "
        f"build it again with --vocab={context.corpus_dir}/vocab.txt"
      )
    return BlockRecords(own)
