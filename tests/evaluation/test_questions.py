"""Questions in batches, also where the task drops some of them."""

import json

import numpy as np
import pytest
import seqio
import tensorflow as tf

from realm_jax.evaluation import outputs
from realm_jax.evaluation.questions import open_questions
from realm_jax.evaluation.shares import Share
from realm_jax.inputs.config import TaskContext
from realm_jax.inputs.examples import find_task
from realm_jax.inputs.features import token_feature
from tests.evaluation.lines import read_lines
from tests.inputs import tiny_corpus

_DROPPED = (0, 3, 8, 9)


@pytest.fixture
def data(tmp_path):
  """Twenty questions in batches of eight, of which the task drops four."""
  corpus_dir = tiny_corpus.build(tmp_path).corpus_dir
  path = tmp_path / "twenty.jsonl"
  lines = [
    {"id": str(n), "question": "when ?" if n in _DROPPED else "who ?"}
    for n in range(20)
  ]
  text = "".join(json.dumps(q | {"answer": ["1900"]}) + "\n" for q in lines)
  path.write_text(text)
  whole = find_task("open_qa")
  seqio.TaskRegistry.add(
    "who_alone",
    source=whole.source,
    preprocessors=[
      *whole.preprocessors,
      lambda examples: examples.filter(
        lambda e: tf.equal(e["question"], "who ?")
      ),
    ],
    output_features={"query": token_feature()},
  )
  context = TaskContext(corpus_dir, {"train": path})
  yield tiny_corpus.config("who_alone", context, batch_size=8)
  seqio.TaskRegistry.remove("who_alone")


def test_questions_come_first_and_lines_in_the_order_of_the_file(
  data, tmp_path
):
  share = Share()
  sizes, found = [], []
  with (
    open_questions(data, share=share) as batches,
    outputs.lines(tmp_path, "made.jsonl", share) as made,
  ):
    for token_ids, questions in batches:
      assert token_ids.shape == (8, data.query_length)
      # Each has the tokens of its row: "who" and not "when".
      assert len(np.unique(token_ids[: len(questions)], axis=0)) == 1
      sizes.append(len(questions))
      for question in questions:
        found.append(int(question.id))
        assert question.position == found[-1]
        made[question.position] = {"id": found[-1]}
  kept = [n for n in range(20) if n not in _DROPPED]
  # Row 0 has 16 alone, and row 2 alone has three: 2, 10 and 18.
  assert sizes == [8, 7, 1]
  assert found != sorted(found) == kept
  lines = read_lines(tmp_path / "made.jsonl")
  assert [line["id"] for line in lines] == kept
