"""A whole evaluation over a corpus in another language than English."""

import json
import shutil

import pytest

from realm_jax.corpus.manifest import MANIFEST_NAME
from tests import tiny_world
from tests.evaluation.lines import read_lines


@pytest.mark.slow
def test_answers_are_judged_by_the_rules_of_the_corpus(
  world, evaluate, evaluated, tmp_path
):
  german = shutil.copytree(world.corpus_dir, tmp_path / "corpus")
  path = german / MANIFEST_NAME
  path.write_text(json.dumps(json.loads(path.read_text()) | {"language": "de"}))
  # What is predicted, with an article that only German has.
  predicted = [line["prediction"] for line in evaluated[1]]
  rows = [
    row | {"answer": [f"Die {answer}!"]}
    for row, answer in zip(tiny_world.questions(), predicted, strict=True)
  ]
  file = tmp_path / "questions.jsonl"
  file.write_text("".join(json.dumps(row) + "\n" for row in rows))
  for folder, language, expected in (
    (world.corpus_dir, "en", 0.0),
    (german, "de", 1.0),
  ):
    metrics = evaluate(
      corpus_dir=folder,
      question_files={"test": file},
      output_dir=tmp_path / language,
    )
    assert metrics["language"] == language
    assert metrics["exact_match"] == expected
    for line in read_lines(tmp_path / language / "predictions.jsonl"):
      assert line["language"] == language
