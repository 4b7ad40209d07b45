"""Open-domain questions of your own, with alternative answers.

    open_qa        answers are strings
    open_qa_regex  answers are regular expressions

Questions are read from the run's JSON Lines files, one for each split:

    {"question": "who wrote it", "answer": ["Mary Shelley"], "id": "q1"}

With `gold_ids` or `gold_titles`, they also have the documents that lead to the
answer, in their order.

The tasks of published data sets, in other files of this folder, use the same
`add`.
"""

import functools
from collections.abc import Mapping

import seqio
import tensorflow as tf

from realm_jax.answers.match import AnswerKind
from realm_jax.inputs.features import (
  feature_length,
  token_feature,
  wordpieces,
)
from realm_jax.inputs.question_files import TASKS
from realm_jax.inputs.questions import JsonLinesSource, QuestionSource


@tf.autograph.experimental.do_not_convert
def ask(
  questions: tf.data.Dataset,
  *,
  answer_kind: AnswerKind,
  sequence_length: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
  """Makes `query`, the question's tokens, and `answer_tokens`.

  `answer_tokens` is int32[a, w], each answer's tokens padded with 0; a pattern
  has no tokens. The texts are kept, and `answer_kind` is how to compare them.
  """
  words = wordpieces()
  num_words = feature_length("query", sequence_length) - 2

  def to_example(record: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    token_ids = record["question_tokens"][:num_words]
    # Answers are padded to the longest one of all questions in a lookup.
    answers = record["answer_tokens"]
    longest = tf.reduce_max(tf.math.count_nonzero(answers, axis=1))
    gold = {"gold": record["gold"]} if "gold" in record else {}
    return gold | {
      "position": record["position"],
      "query": tf.concat([[words.cls_id], token_ids, [words.sep_id]], 0),
      "question": record["question"],
      "question_id": record["question_id"],
      "answers": record["answers"],
      "answer_tokens": answers[:, :longest],
      "answer_kind": tf.constant(answer_kind),
    }

  return questions.map(to_example, num_parallel_calls=tf.data.AUTOTUNE)


def add(name: str, source: QuestionSource) -> seqio.Task:
  """Registers a task of questions with seqio.

  Args:
    name: Name of the task.
    source: Source of the questions, which has the kind of their answers.
  """
  return seqio.TaskRegistry.add(
    name,
    source=source,
    preprocessors=[functools.partial(ask, answer_kind=source.answer_kind)],
    output_features={"query": token_feature()},
  )


for _name, _kind in TASKS.items():
  add(_name, JsonLinesSource(answer_kind=_kind))
