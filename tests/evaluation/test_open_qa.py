"""Evaluation of open QA, against second implementations of its parts."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from realm_jax.corpus.manifest import MANIFEST_NAME
from realm_jax.corpus.store import Block
from realm_jax.evaluation.open_qa import (
  evaluate_masked_statements,
  evaluate_retrieval,
)
from realm_jax.evaluation.run import TrainedRun
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.training.stages.open_qa import OpenQa
from tests import tiny_world
from tests.json_lines import read_lines, write_lines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def blocks(world) -> dict[str, Block]:
  """The blocks of the corpus by name."""
  corpus = world.corpus
  every = (corpus.block(row) for row in range(corpus.num_blocks))
  return {block.id: block for block in every}


def test_the_answer_place_is_the_prediction_in_a_block_that_was_read(
  blocks, evaluated
):
  metrics, lines = evaluated
  for line in lines:
    place = line["answer"]
    body = blocks[place["block"]].text.encode()
    found = body[place["start_byte"] : place["limit_byte"]].decode()
    assert found == line["prediction"]
    read = [e["block"] for e in line["evidence"] if e["read"]]
    assert len(read) == 5 and place["block"] in read
    # Whole words: neither end lies inside a word.
    before = body[: place["start_byte"]].decode()[-1:]
    after = body[place["limit_byte"] :].decode()[:1]
    assert not (before.isalnum() and found[0].isalnum())
    assert not (found[-1].isalnum() and after.isalnum())
    for block in line["evidence"]:
      has_answer = line["references"][0] in blocks[block["block"]].text
      assert block["contains_answer"] == has_answer
  assert metrics["recall_read"] == metrics["recall_at_5"]


def test_the_bound_reads_the_best_blocks_that_contain_an_answer(
  evaluate, tmp_path
):
  metrics = evaluate(
    candidates="gold", num_searched=28, num_read=1, output_dir=tmp_path
  )
  assert metrics["recall_read"] == 1.0
  for line in read_lines(tmp_path / "predictions.jsonl"):
    contains = [block["contains_answer"] for block in line["evidence"]]
    (read,) = [i for i, b in enumerate(line["evidence"]) if b["read"]]
    assert read == contains.index(True)
    # The ranking is that of the retriever nevertheless.
    scores = [block["score"] for block in line["evidence"]]
    assert scores == sorted(scores, reverse=True)
    assert line["answer"]["block"] == line["evidence"][read]["block"]


def test_the_control_reads_random_blocks_and_prefers_none(evaluate, tmp_path):
  metrics = evaluate(candidates="random", max_examples=3, output_dir=tmp_path)
  assert (metrics["candidates"], metrics["index"]) == ("random", "random")
  lines = read_lines(tmp_path / "predictions.jsonl")
  assert [line["id"] for line in lines] == ["q0", "q1", "q2"]
  drawn = [[block["block"] for block in line["evidence"]] for line in lines]
  assert {len({*names}) for names in drawn} == {20} and drawn[0] != drawn[1]
  for line in lines:
    assert [e["probability"] for e in line["evidence"]] == pytest.approx(
      [1 / 20] * 20, abs=1e-4
    )


def test_an_index_without_vectors_brings_its_own_scores(
  world, model_dir, run_config, evaluate, tmp_path
):
  world.build_snapshot(
    model_dir, index=Bm25Config(), snapshots_dir=tmp_path / "bm25"
  )
  world.save_checkpoint(
    tmp_path / "run",
    snapshot=0,
    stage=OpenQa(index_scores=True, initial_scale=0.25),
  )
  metrics = evaluate(
    model_dir=tmp_path / "run",
    snapshot=tmp_path / "bm25",
    index_scores=True,
    output_dir=tmp_path,
  )
  assert metrics["index"] == "bm25"
  other = TrainedRun.load(
    dataclasses.replace(run_config, snapshot=tmp_path / "bm25")
  )
  for line in read_lines(tmp_path / "predictions.jsonl"):
    query = QueryBatch(other.encode([line["question"]]))
    found = other.snapshot.index.search(query, 20)
    # Open QA has learnt a scale.
    np.testing.assert_allclose(
      [e["score"] for e in line["evidence"]], found.scores[0] / 4, atol=1e-4
    )
    assert [e["block"] for e in line["evidence"]] == [
      other.corpus.block(row).id for row in found.rows[0].tolist()
    ]


# --- Statements and other languages -------------------------------------------


def test_statements_are_filled_in_and_scored(run_config, questions, tmp_path):
  # Any wordpiece is accepted for the first two, whose first answer has as many.
  every = tiny_world.pieces()
  rows = [
    {"question": "Ada was born in [MASK].", "answer": ["velt", *every]},
    {"question": "[MASK] built the bridge.", "answer": ["ada", *every]},
    {"question": "Later Oda built the [MASK].", "answer": ["stone in velt"]},
  ]
  path = tmp_path / "statements.jsonl"
  write_lines(path, rows)
  data = dataclasses.replace(questions, question_files={"test": path})
  given = {"config": run_config, "data": data, "output_dir": tmp_path}
  metrics = evaluate_masked_statements(**given)
  lines = read_lines(tmp_path / "predictions.jsonl")
  assert [line["correct"] for line in lines] == [True, True, False]
  assert [len(line["prediction"].split()) for line in lines[:2]] == [1, 1]
  assert metrics["exact_match"] == pytest.approx(2 / 3)
  # The blocks are those of the evaluation of retrieval, of which some are read.
  assert metrics["recall_at_5"] == evaluate_retrieval(**given)["recall_at_5"]
  found = read_lines(tmp_path / "retrieved.jsonl")
  for line, other in zip(lines, found, strict=True):
    read = [block.pop("read") for block in line["evidence"]]
    assert sum(read) == run_config.num_candidates - 1
    assert line["evidence"] == other["evidence"]


def test_answers_are_judged_by_the_rules_of_the_corpus(
  world, evaluate, evaluated, tmp_path
):
  german = shutil.copytree(world.corpus_dir, tmp_path / "corpus")
  path = german / MANIFEST_NAME
  path.write_text(json.dumps(json.loads(path.read_text()) | {"language": "de"}))
  # What is predicted, with an article that only German has, and "Vel", which is
  # in "Velt" and no word.
  rows = [
    {"question": row["question"], "answer": [f"Die {row['prediction']}!"]}
    for row in evaluated[1]
  ]
  rows.append(rows[0] | {"answer": ["Vel"]})
  file = tmp_path / "questions.jsonl"
  write_lines(file, rows)
  metrics = evaluate(
    corpus_dir=german, question_files={"test": file}, output_dir=tmp_path
  )
  *same, begun = read_lines(tmp_path / "predictions.jsonl")
  assert {(one["correct"], one["f1"]) for one in same} == {(True, 1.0)}
  assert {one["language"] for one in same} == {metrics["language"]} == {"de"}
  assert metrics["exact_match"] < 1
  assert any(block["contains_characters"] for block in begun["evidence"])
  assert not any(block["contains_answer"] for block in begun["evidence"])
