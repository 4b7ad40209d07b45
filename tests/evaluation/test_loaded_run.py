"""A run in Python, as docs/evaluation.md shows it."""

import re
import subprocess
import sys

import numpy as np
import pytest

import gin
import realm_jax
from realm_jax.checkpoints.store import CheckpointError
from tests import tiny_world
from tests.evaluation.lines import read_lines


def test_to_import_the_package_imports_no_library(
  project_dir, command_environment
):
  libraries = {"absl", "flax", "gin", "jax", "numpy", "tensorflow"}
  code = f"import realm_jax, sys; print({libraries} & sys.modules.keys())"
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=project_dir,
    env=command_environment,
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == "set()\n"
  with pytest.raises(AttributeError, match="lode"):
    _ = realm_jax.lode


@pytest.mark.slow
def test_the_page_runs(
  recorded_run, evaluate, tmp_path, project_dir, monkeypatch, one_device
):
  folder = recorded_run("open_qa")
  folder.rename(folder.parent / "qa")
  recorded_run("pretrain").rename(folder.parent / "realm")
  monkeypatch.chdir(folder.parent.parent)
  page = (project_dir / "docs/evaluation.md").read_text()
  before = gin.config_str()
  names: dict = {}
  for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
    exec(code, names)
  assert gin.config_str() == before

  run, best = names["run"], names["best"]
  # An evaluation that ranks answers as this does; its first question is the
  # page's.
  evaluate(num_spans=50, rank_answers_by="probability", output_dir=tmp_path)
  lines = read_lines(tmp_path / "predictions.jsonl")
  line = lines[0]
  assert line["question"] == "where was Ada born?"
  assert best.text == line["prediction"]
  assert best.score == pytest.approx(line["answer"]["score"], abs=1e-4)
  assert best.block.text[best.start : best.limit] == best.text
  assert best.block.id == line["answer"]["block"]
  many, scores = names["many"], names["scores"]
  found = [block.id for block in many[0]]
  assert found == [block["block"] for block in line["evidence"][:3]]
  # The two ways to a score, and the softmax over three.
  for blocks, of_query in zip(many, scores, strict=True):
    own = np.sort(of_query)[::-1][:3]
    np.testing.assert_allclose([b.score for b in blocks], own, rtol=1e-5)
    weights = np.exp(own - own.max())
    np.testing.assert_allclose(
      [b.probability for b in blocks], weights / weights.sum(), rtol=1e-4
    )

  # A question's blocks are those that are read; a sentence has the null block.
  of_question = run.explain(line["question"], best.text)
  read = [one.block.id for one in of_question.candidates]
  assert read == [block["block"] for block in line["evidence"][: len(read)]]
  found = [one.log_likelihood is not None for one in of_question.candidates]
  assert found[read.index(best.block.id)]
  of_sentence = names["explained"]
  assert (of_sentence.answer, of_sentence.answer_is_given) == ("Velt", True)
  assert of_sentence.candidates[0].block.row == -1

  # More questions than a batch has, answered as an evaluation does.
  texts = [question["question"] for question in tiny_world.questions()]
  answered = run.ask([*texts, *texts], num_answers=1)
  assert [one.question for one in answered] == [*texts, *texts]
  predictions = [line["prediction"] for line in lines]
  assert [one.text for one in answered] == [*predictions, *predictions]
  assert {len(one.answers) for one in answered} == {1}
  # One text is one row; none is none.
  assert run.embed(texts[0]).tolist() == run.embed(texts[:1])[0].tolist()
  assert run.embed([]).shape == (0, tiny_world.RETRIEVER.vector_size)
  assert run.ask([]) == []
  with pytest.raises(ValueError, match="has no words"):
    run.ask(" ")
  for wrong in (None, 5, [None]):
    with pytest.raises(TypeError, match=r"None|5"):
      run.ask(wrong)
    with pytest.raises(TypeError, match=r"None|5"):
      run.retrieve(wrong)
  with pytest.raises(ValueError, match="num_answers=0; want at least 1"):
    run.ask(texts[0], num_answers=0)
  blocks = run.corpus.num_blocks
  assert len(run.retrieve(texts[0], k=blocks)) == blocks
  for k in (0, blocks + 1):
    with pytest.raises(ValueError, match=rf"k={k}; .* at most {blocks}"):
      run.retrieve(texts[0], k=k)


@pytest.mark.slow
def test_a_run_of_another_stage_retrieves_and_does_not_answer(
  recorded_run, evaluated, one_device
):
  run = realm_jax.load(recorded_run("pretrain"), bindings=["NUM_READ = 2"])
  (block,) = run.retrieve("where was Ada born?", k=1)
  assert block.id == evaluated[1][0]["evidence"][0]["block"]
  assert "checkpoint 0" in repr(run)
  with pytest.raises(CheckpointError, match=r"stage Pretraining.*open_qa\.gin"):
    run.ask("where was Ada born?")
