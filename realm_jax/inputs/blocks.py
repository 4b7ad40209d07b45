"""The blocks of a corpus as a seqio source."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from jaxtyping import Int

from realm_jax.corpus.store import Corpus
from realm_jax.inputs.config import TaskError, current_context
from realm_jax.inputs.sources import RandomAccessSource


class BlockRecords:
  """Blocks of some rows as records.

  `sentences` and `salient_spans` index `body_ids`, and `salient_span_kinds` are
  names, which mean the same in every corpus.
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

  def __init__(self, corpus: Corpus, rows: range):
    self.corpus = corpus
    self._rows = rows
    names = [kind.encode() for kind in corpus.span_kinds]
    self._kind_names = np.array(names, object)

  def __len__(self) -> int:
    return len(self._rows)

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Any]:
    """Reads blocks by their indices in the split."""
    corpus, indices = self.corpus, self._rows.start + indices
    blocks = [corpus.block(row) for row in indices.tolist()]
    titled = [(block.token_ids, block.title_length) for block in blocks]
    return {
      "block_id": corpus.block_ids[indices],
      "content_hash": corpus.content_hashes[indices],
      "title_ids": [ids[:limit] for ids, limit in titled],
      "body_ids": [ids[limit:] for ids, limit in titled],
      "sentences": [block.sentences for block in blocks],
      "salient_spans": [block.salient_spans for block in blocks],
      "salient_span_kinds": [
        self._kind_names[block.salient_span_kinds] for block in blocks
      ],
    }


class CorpusSource(RandomAccessSource):
  """The blocks of the corpus from which a run's examples come.

  The split "validation" has the held-out blocks, and "train" the others.
  """

  def __init__(self):
    super().__init__(splits=("train", "validation"), caching_permitted=False)

  def __str__(self) -> str:
    context = current_context()
    return f"the corpus {context.pretraining_corpus_dir or context.corpus_dir}"

  def open(self, split: str) -> BlockRecords:
    """Opens the blocks of a split.

    Raises:
      TaskError: No corpus is given, or more blocks are held out than there are.
    """
    context = current_context()
    corpus, held_out = context.examples, context.held_out_blocks
    num_blocks = corpus.num_blocks
    if held_out >= num_blocks:
      raise TaskError(
        f"held_out_blocks={held_out} leaves nothing of the {num_blocks} blocks "
        f"of {self} to train on; lower HELD_OUT_BLOCKS"
      )
    if split == "train":
      return BlockRecords(corpus, range(num_blocks - held_out))
    return BlockRecords(corpus, range(num_blocks - held_out, num_blocks))
