"""Lists that a service has retrieved, and the rewards that clients sent.

feedback   the last few thousand lists of a growing feedback log
           (realm_jax/feedback), drawn at random, without end
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import seqio
import tensorflow as tf
from absl import logging
from jaxtyping import Int, UInt64

from realm_jax.console import is_stopping
from realm_jax.feedback.examples import (
  Feedback,
  FeedbackExamples,
  Split,
  total_reward,
)
from realm_jax.indexes.protocol import WaitPreemptedError
from realm_jax.inputs.config import current_context
from realm_jax.inputs.features import (
  feature_length,
  plain_feature,
  token_feature,
  wordpieces,
)
from realm_jax.inputs.sources import RunFilesSource

# Number of recent lists to draw from: retrievers of older lists differ too much
# from the current one.
_NUM_RECENT = 4096
_POLL_SECONDS = 1.0
_ARRAYS = {
  "pool_ids": tf.int64,
  "pool_hashes": tf.int64,
  "pool_scores": tf.float32,
  "shown": tf.int32,
  "advantages": tf.float32,
  "rewards": tf.float32,
}
_NUMBERS = {
  "reward": tf.float32,
  "temperature": tf.float32,
  # Needed because seqio truncates arrays that are too long.
  "num_candidates": tf.int32,
  "num_shown": tf.int32,
  # 1 if each passage has its own reward.
  "is_of_passages": tf.int32,
}


class _FeedbackRecords:
  """The lists of a log, each with its rewards for a loss."""

  spec: Mapping[str, Any] = {
    "query": tf.TensorSpec([], tf.string),
    **{name: tf.TensorSpec([None], dtype) for name, dtype in _ARRAYS.items()},
    **{name: tf.TensorSpec([], dtype) for name, dtype in _NUMBERS.items()},
  }

  def __init__(self, examples: FeedbackExamples):
    self._examples = examples

  def __len__(self) -> int:
    return len(self._examples)

  def choose(self, hashes: UInt64[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Chooses uniformly among the last lists.

    Waits for the first rewards.

    Raises:
      WaitPreemptedError: The run was preempted before they arrived.
    """
    self._examples.poll()
    while not len(self):
      logging.log_every_n_seconds(
        *(logging.INFO, "waiting for the first rewards in %s", 60.0),
        self._examples.directory,
      )
      time.sleep(_POLL_SECONDS)
      if is_stopping():
        raise WaitPreemptedError(
          f"no rewards came to {self._examples.directory} before the run ended"
        )
      self._examples.poll()
    recent = min(len(self), _NUM_RECENT)
    return len(self) - 1 - (hashes % np.uint64(recent)).astype(np.int64)

  def lookup(self, indices: Int[np.ndarray, " n"]) -> Mapping[str, Any]:
    """Reads lists."""
    records = [_record(self._examples[index]) for index in indices.tolist()]
    return {name: [one[name] for one in records] for name in self.spec}


def _record(feedback: Feedback) -> dict[str, Any]:
  """Returns the features of a list.

  Rewards of passages are the block's own reward less its share of the baseline.
  A reward of the whole list is repeated for each block.
  """
  served, rewards, baseline = feedback
  count = len(served.shown)
  if isinstance(rewards, Sequence):
    block_rewards = np.array(rewards, np.float32)
    advantages = block_rewards - baseline / count
  else:
    block_rewards = np.zeros(count, np.float32)
    advantages = np.full(count, rewards - baseline)
  return {
    "query": served.query.encode(),
    "pool_ids": served.blocks,
    "pool_hashes": served.hashes,
    "pool_scores": served.scores,
    # Shifted, so that 0 is padding.
    "shown": served.shown + 1,
    "advantages": advantages.astype(np.float32),
    "rewards": block_rewards,
    "reward": total_reward(rewards),
    "temperature": served.temperature or 0.0,
    "num_candidates": len(served.blocks),
    "num_shown": count,
    "is_of_passages": isinstance(rewards, Sequence),
  }


class FeedbackSource(RunFilesSource):
  """The feedback logs of a run, one folder for each split.

  The split "validation" has a tenth of the lists, and "train" the others.
  """

  def open(self, split: str) -> _FeedbackRecords:
    """Opens a log, which may not exist yet."""
    path = current_context().question_file(split)
    return _FeedbackRecords(FeedbackExamples(path, cast(Split, split)))


@tf.autograph.experimental.do_not_convert
def tokenize_query(
  records: tf.data.Dataset, *, sequence_length: Mapping[str, int] | None = None
) -> tf.data.Dataset:
  """Replaces the text of the query by its wordpieces, `[CLS] x [SEP]`."""
  words = wordpieces()
  length = feature_length("query", sequence_length)

  def tokenize(text: bytes) -> np.ndarray:
    ids = words.encode(text.decode())[: length - 2]
    return np.array([words.cls_id, *ids, words.sep_id], np.int32)

  def to_example(record: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    query = tf.numpy_function(
      tokenize, [record["query"]], tf.int32, stateful=False
    )
    return {**record, "query": tf.ensure_shape(query, [None])}

  return records.map(to_example, num_parallel_calls=tf.data.AUTOTUNE)


seqio.TaskRegistry.add(
  "feedback",
  source=FeedbackSource(),
  preprocessors=[tokenize_query],
  output_features={
    "query": token_feature(),
    **{n: plain_feature(dtype, rank=1) for n, dtype in _ARRAYS.items()},
    **{n: plain_feature(dtype, rank=0) for n, dtype in _NUMBERS.items()},
  },
)
