"""Evaluations that break off and go on, and what they keep in memory."""

import dataclasses
import itertools
import json
import logging
import tracemalloc

import numpy as np
import pytest
import seqio
import tensorflow as tf
from etils import epath

from realm_jax.evaluation import parts
from realm_jax.evaluation.open_qa import evaluate_retrieval
from realm_jax.evaluation.scores import question_scores, summarize
from realm_jax.inputs.examples import find_task
from tests import tiny_world
from tests.counted_searches import counted_searches
from tests.evaluation.lines import line
from tests.json_lines import read_lines, write_lines

_DROPPED = (0, 8, 16, 24)


@pytest.fixture
def few_lines(monkeypatch):
  """A part takes one batch, or two if they are of two lines each."""
  monkeypatch.setattr(parts, "_MAX_LINES", 3)


@pytest.fixture
def many_questions(tmp_path):
  """The world's questions four times, under other ids: six batches of eight."""
  every = [
    row | {"id": f"{k}-{row['id']}"}
    for k in range(4)
    for row in tiny_world.questions()
  ]
  return {"test": write_lines(tmp_path / "questions.jsonl", every)}


def _files(folder):
  """What an evaluation has written, apart from the time that it took."""
  metrics = json.loads((folder / "metrics.json").read_text())
  del metrics["seconds"]
  (lines,) = folder.glob("*.jsonl")
  assert {path.name for path in folder.iterdir()} == {
    "metrics.json",
    lines.name,
  }
  return metrics, lines.read_bytes()


@pytest.mark.slow
def test_an_evaluation_that_broke_off_goes_on(
  evaluate, many_questions, few_lines, tmp_path
):
  def call(folder):
    return evaluate(question_files=many_questions, output_dir=folder)

  with counted_searches() as counts:
    metrics = call(tmp_path / "whole")
  assert len(counts) == 6
  expected = _files(tmp_path / "whole")
  folder = tmp_path / "resumed"
  for limit in (3, 1):
    with counted_searches(limit):
      call(folder)
    assert not (folder / "predictions.jsonl").exists()
  # A part that a kill left half written does not count.
  (own,) = (folder / parts.FOLDER).iterdir()
  (own / "0-00004.jsonl").write_text("{")
  with counted_searches() as counts:
    call(folder)
  assert len(counts) == 2
  assert _files(folder) == expected
  # Without a folder, the scores alone are kept.
  alone = evaluate(question_files=many_questions)
  del alone["seconds"], metrics["seconds"]
  assert alone == metrics


@pytest.mark.slow
def test_parts_of_another_evaluation_are_removed(
  evaluate, many_questions, few_lines, tmp_path, caplog
):
  caplog.set_level(logging.INFO, logger="absl")
  folder = tmp_path / "evaluated"

  def call(limit, folder=folder, **changes):
    with counted_searches(limit) as counts:
      evaluate(question_files=many_questions, output_dir=folder, **changes)
    return len(counts)

  call(3)
  assert call(4, num_read=3) == 4
  assert "an evaluation that differs in config.num_read" in caplog.text
  every = read_lines(many_questions["test"])
  write_lines(many_questions["test"], [*every[1:], every[0]])
  assert call(7, num_read=3) == 6
  assert "an evaluation that differs in the questions" in caplog.text
  call(7, tmp_path / "whole", num_read=3)
  assert _files(folder) == _files(tmp_path / "whole")


@pytest.fixture
def some_questions():
  """A task that drops a few of the questions of its first row."""
  task = find_task("open_qa")

  def is_kept(example):
    return tf.reduce_all(example["position"] != tf.constant(_DROPPED, "int64"))

  name = "some_questions"
  seqio.TaskRegistry.add(
    name,
    source=task.source,
    preprocessors=[lambda rows: rows.filter(is_kept), *task.preprocessors],
    output_features=task.output_features,
  )
  yield name
  seqio.TaskRegistry.remove(name)


@pytest.mark.slow
def test_a_task_may_drop_questions_and_break_off(
  run_config, questions, many_questions, some_questions, few_lines, tmp_path
):
  # The first row gets ahead of the others.
  data = dataclasses.replace(
    questions, task=some_questions, question_files=many_questions
  )

  def call(name):
    evaluate_retrieval(config=run_config, data=data, output_dir=tmp_path / name)

  call("whole")
  with counted_searches(3):
    call("resumed")
  call("resumed")
  assert _files(tmp_path / "resumed") == _files(tmp_path / "whole")
  ids = [row["id"] for row in read_lines(tmp_path / "whole/retrieved.jsonl")]
  every = read_lines(many_questions["test"])
  assert ids == [row["id"] for k, row in enumerate(every) if k not in _DROPPED]


def _write(folder, process, numbered, size):
  """Writes lines as a process does, `size` of them in a batch."""
  own = parts.Parts(folder, process)
  numbered, state = iter(numbered), 0
  while batch := dict(itertools.islice(numbered, size)):
    own.add(batch, [state := state + 1])
  own.flush()
  return own.parts


def test_lines_are_merged_in_order_with_the_scores_of_all(tmp_path, few_lines):
  output_dir = epath.Path(tmp_path)
  folder = output_dir / parts.FOLDER / parts.open_folder(output_dir, {})
  rng = np.random.default_rng(0)
  # Patterns have no F1: here all of a part, and not of all parts.
  every = [
    line(
      number,
      prediction="",
      f1=None if number < 20 else rng.random(),
      words=np.flatnonzero(rng.random(6) < 0.2),
    )
    for number in range(40)
  ]
  numbered = [*enumerate(every)]
  made = []
  for process in range(2):
    own = numbered[process::2]
    # One row is ahead of the others.
    own = [*own[1::2], *own[::2]]
    made += _write(folder, process, own, 2)
    assert len(parts.Parts(folder, process).parts) == 5
  scores = parts.merge(made, folder, "all.jsonl")
  assert read_lines(tmp_path / "all.jsonl") == every
  expected = question_scores(every)
  assert scores.keys() == expected.keys()
  for name, values in expected.items():
    np.testing.assert_array_equal(scores[name], values)
  assert summarize(scores) == summarize(expected)


def test_memory_does_not_grow_with_the_lines(tmp_path, monkeypatch):
  monkeypatch.setattr(parts, "_MAX_LINES", 200)
  output_dir, text, number = epath.Path(tmp_path), "x" * 4000, 1_600
  folder = output_dir / parts.FOLDER / parts.open_folder(output_dir, {})
  tracemalloc.start()
  numbered = ((k, line(k, question=text)) for k in range(number))
  made = _write(folder, 0, numbered, 8)
  writing = tracemalloc.get_traced_memory()[1]
  tracemalloc.reset_peak()
  parts.merge(made, folder, "all.jsonl")
  merging = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert (tmp_path / "all.jsonl").stat().st_size > number * len(text)
  # A part has 800 kB of text.
  assert writing < 2.4e6
  assert merging < 0.8e6
