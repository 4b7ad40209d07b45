"""Masked statements with known answers, from a file of questions."""

import dataclasses
import json

import pytest

from realm_jax.evaluation.explain import explain
from realm_jax.evaluation.masked_statements import evaluate_masked_statements
from realm_jax.evaluation.open_qa import evaluate_retrieval
from tests.evaluation.lines import read_lines

pytestmark = pytest.mark.slow


def test_statements_are_filled_in_and_scored(
  run, run_config, questions, tmp_path
):
  texts = ["Ada was born in [MASK].", "[MASK] built the bridge of Tarn."]
  texts += ["Later Oda built the [MASK] of Mirá."]
  # The second answer has the number of wordpieces of the filling that is wrong.
  best = [explain(run, text).fillings[0].text for text in texts]
  answers = [best[0], "bridge" if best[1] != "bridge" else "born", best[2]]
  path = tmp_path / "statements.jsonl"
  with path.open("w") as file:
    for text, answer in zip(texts, answers, strict=True):
      file.write(json.dumps({"question": text, "answer": [answer]}) + "\n")
  data = dataclasses.replace(questions, question_files={"test": path})

  def evaluated(evaluation, name):
    folder = tmp_path / name
    metrics = evaluation(config=run_config, data=data, output_dir=folder)
    (lines,) = (read_lines(file) for file in folder.glob("*.jsonl"))
    return metrics, lines

  metrics, lines = evaluated(evaluate_masked_statements, "filled")
  assert [line["prediction"] for line in lines] == best
  assert metrics["exact_match"] == pytest.approx(2 / 3)
  # The blocks are those of the evaluation of retrieval, of which some are read.
  retrieved, found = evaluated(evaluate_retrieval, "retrieved")
  assert metrics["recall_at_5"] == retrieved["recall_at_5"]
  for line, other in zip(lines, found, strict=True):
    read = [block.pop("read") for block in line["evidence"]]
    assert sum(read) == run_config.num_candidates - 1
    assert line["evidence"] == other["evidence"]
