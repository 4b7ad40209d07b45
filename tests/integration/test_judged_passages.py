"""The retriever is trained on judged passages, by commands."""

import contextlib

import pytest

from realm_jax.checkpoints.store import locate
from realm_jax.inputs.batch import TaskError
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world
from tests.json_lines import write_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


def test_scores_of_a_file_teach_without_a_cross_encoder(commands, tmp_path):
  people, questions = tiny_world.documents(), tiny_world.questions()
  lines = [
    {
      "query": question["question"],
      "positive_passages": [{**people[number], "score": 5.0}],
      "negative_passages": [{**people[number + 1], "score": 2.5}],
    }
    for number, question in enumerate(questions)
  ]
  settings = {"NUM_STEPS": 2, "NUM_NEGATIVES": 2}
  folder, given = tmp_path / "run", write_lines(tmp_path / "f.jsonl", lines)
  commands.train(
    *("distillation_from_scores", folder), TRAIN_QUESTIONS=given, **settings
  )
  assert all(row["distillation"] > 0 for row in read_rows(folder))
  store, step = locate(folder)
  with contextlib.closing(store):
    assert store.components(step) == {"retriever"}
  del lines[3]["negative_passages"][0]["score"]
  with pytest.raises(TaskError, match="line 4: the score of a passage is None"):
    commands.train(
      *("distillation_from_scores", tmp_path / "bad"),
      TRAIN_QUESTIONS=write_lines(tmp_path / "bad.jsonl", lines),
      **settings,
    )
