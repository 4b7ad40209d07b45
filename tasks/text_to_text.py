"""Text-to-text tasks, such as fact checking and dialogue, with retrieval.

A source's records have texts as `inputs` and `targets`, like T5's tasks. Blocks
are retrieved for `inputs`. For example, a complete task of claims with labels:

    @seqio.map_over_dataset
    def read(record):
      claim, label = tf.unstack(tf.strings.split(record["text"], "\t"), 2)
      return {**record, "inputs": claim, "targets": label}

    source = seqio.TextLineDataSource({"train": "claims.tsv"})
    text_to_text.add("claims", source, [read])
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from realm_jax.inputs.batch import padded
from realm_jax.inputs.features import token_feature, wordpieces
from realm_jax.tasks import open_qa


@tf.autograph.experimental.do_not_convert
def as_question(records: tf.data.Dataset) -> tf.data.Dataset:
  """Makes the record of a question from `inputs`, its answers from `targets`.

  `targets` is a text, or a vector of alternatives; each epoch uses another one.
  The `id` of a record without one is its position.
  """
  words = wordpieces()

  def encode(text: bytes) -> np.ndarray:
    return np.array(words.encode_masked(text.decode()), np.int32)

  def encode_all(texts: np.ndarray) -> np.ndarray:
    return padded([encode(text) for text in texts], (None,), np.int32)

  def to_question(record: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    question = record["inputs"]
    answers = tf.reshape(record["targets"], [-1])
    question_tokens = tf.numpy_function(encode, [question], tf.int32)
    answer_tokens = tf.numpy_function(encode_all, [answers], tf.int32)
    name = record.get("id", record["position"])
    return {
      "position": record["position"],
      "question": question,
      "question_tokens": tf.ensure_shape(question_tokens, [None]),
      "question_id": name
      if name.dtype == tf.string
      else tf.strings.as_string(name),
      "answers": answers,
      "answer_tokens": tf.ensure_shape(answer_tokens, [None, None]),
    }

  return records.map(to_question, num_parallel_calls=tf.data.AUTOTUNE)


def add(
  name: str,
  source: seqio.DataSourceInterface,
  preprocessors: Sequence[Callable[..., tf.data.Dataset]] = (),
) -> seqio.Task:
  """Registers a text-to-text task with seqio, trained and evaluated as open QA.

  Args:
    name: Name of the task.
    source: Source of the records.
    preprocessors: Functions that make `inputs` and `targets`, texts, and keep
      `position`.
  """
  return seqio.TaskRegistry.add(
    name,
    source=source,
    preprocessors=[
      *preprocessors,
      as_question,
      functools.partial(open_qa.ask, answer_kind="string"),
    ],
    output_features={"query": token_feature()},
  )
