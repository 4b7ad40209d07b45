"""Retrieval alone agrees with the retrieval of open QA."""

import pytest

from realm_jax.evaluation.retrieval import evaluate_retrieval
from realm_jax.training.stages import InverseCloze
from tests.evaluation.lines import read_lines


def test_it_finds_what_open_qa_finds(world, run, evaluated, tmp_path):
  metrics = evaluate_retrieval(
    **run, question_files={"test": world.question_file}, output_dir=tmp_path
  )
  of_open_qa, lines = evaluated
  for name in ("recall_at_1", "recall_at_5", "recall_at_20", "mrr"):
    assert metrics[name] == pytest.approx(of_open_qa[name])
  for line, same in zip(
    lines, read_lines(tmp_path / "retrieved.jsonl"), strict=True
  ):
    assert same["id"] == line["id"]
    assert [e["score"] for e in same["evidence"]] == pytest.approx(
      [e["score"] for e in line["evidence"]], abs=1e-4
    )


def test_a_run_without_reader_searches_its_own_vectors(world, run, tmp_path):
  world.save_checkpoint(tmp_path, step=7, seed=1, stage=InverseCloze())
  arguments = {
    **run,
    "model_dir": tmp_path,
    "question_files": {"test": world.question_file},
    "num_searched": 3,
  }
  with pytest.raises(ValueError, match=r"wants generation 7.*has none.*--once"):
    evaluate_retrieval(**arguments)
  world.build_generation(tmp_path)
  metrics = evaluate_retrieval(**arguments)
  assert (metrics["checkpoint"], metrics["generation"]) == (7, 7)
  # Three are found, so recall at 5 is not known.
  assert {n for n in metrics if n.startswith("recall")} == {"recall_at_1"}
