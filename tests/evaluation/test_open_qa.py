"""Evaluation of open QA, against second implementations of its parts."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf

from realm_jax.corpus.manifest import MANIFEST_NAME
from realm_jax.corpus.store import Block
from realm_jax.evaluation.explain import explain
from realm_jax.evaluation.open_qa import (
  evaluate_masked_statements,
  evaluate_retrieval,
)
from realm_jax.evaluation.run import Run
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.indexes.random import RandomIndex
from realm_jax.inputs.examples import find_task
from realm_jax.inputs.features import token_feature
from realm_jax.inputs.questions import QuestionFileError
from realm_jax.training.stages.inverse_cloze import InverseCloze
from realm_jax.training.stages.open_qa import OpenQa
from tests import tiny_world
from tests.corpus.conftest import text_of
from tests.evaluation.lines import read_lines, write_lines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def blocks(world) -> dict[str, Block]:
  """The blocks of the corpus by name."""
  corpus = world.corpus
  every = (corpus.block(row) for row in range(corpus.num_blocks))
  return {block.name: block for block in every}


def test_the_answer_place_is_the_prediction_in_a_block_that_was_read(
  blocks, evaluated
):
  metrics, lines = evaluated
  for line in lines:
    place = line["answer"]
    body = blocks[place["block"]].body.encode()
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
      has_answer = line["references"][0] in blocks[block["block"]].body
      assert block["contains_answer"] == has_answer
  assert metrics["recall_read"] == metrics["recall_at_5"]


def test_evidence_and_prediction_are_those_of_a_search_of_all(
  run, world, params, blocks, evaluated
):
  line, corpus, models = evaluated[1][7], world.corpus, world.models()
  query_tokens = run.encode([line["question"]])
  every = corpus.gather(np.arange(corpus.num_blocks), tiny_world.BLOCK_LENGTH)
  query, vectors = jax.jit(models.retriever.apply)(
    {"params": params["retriever"]}, query_tokens, every
  )
  scores = np.asarray(vectors) @ np.asarray(query)[0]
  best = np.argsort(-scores, kind="stable")[:20]
  weights = np.exp(scores[best] - scores[best].max())
  for name, wanted in (
    ("score", scores[best]),
    ("probability", weights / weights.sum()),
  ):
    found = [block[name] for block in line["evidence"]]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
  of_name = {corpus.block(row).name: row for row in range(corpus.num_blocks)}
  rows = [of_name[block["block"]] for block in line["evidence"]]
  # The last ones may be ties.
  np.testing.assert_allclose(scores[rows], scores[best], atol=1e-4)

  _, spans = jax.jit(models.reader.apply)(
    {"params": params["reader"]},
    query_tokens,
    every[None, rows[:5]],
    np.zeros((1, 1), np.int32),
  )
  answers = []
  for row, logits in zip(rows[:5], np.asarray(spans.logits)[0], strict=True):
    # Here the body's own length says which spans there are.
    length = len(corpus.block(row).body_token_ids)
    for start in range(length):
      for width in range(1, min(10, length - start) + 1):
        score = scores[row] + logits[start, width - 1]
        answers.append((score, row, start, start + width))
  score, row, start, limit = max(answers)
  block = corpus.block(row)
  assert line["answer"]["block"] == block.name
  assert line["answer"]["score"] == pytest.approx(score, abs=1e-4)
  assert text_of(block, start, limit) in line["prediction"]


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


def test_answers_are_judged_by_words_and_found_by_words_and_characters(
  evaluate, evaluated, tmp_path
):
  # Eight are asked for what they predict; "Vel" is in "Velt" and no word, and
  # "VELT" is a word once it is lower-cased.
  answers = [f"The {line['prediction'].upper()}!" for line in evaluated[1][:8]]
  rows = [
    {"question": line["question"], "answer": ["nothing", answer]}
    for line, answer in zip(
      [*evaluated[1][:8], *[evaluated[1][0]] * 2],
      [*answers, "Vel", "VELT"],
      strict=True,
    )
  ]
  questions = tmp_path / "questions.jsonl"
  write_lines(questions, rows)
  metrics = evaluate(question_files={"test": questions}, output_dir=tmp_path)
  *same, begun, word = read_lines(tmp_path / "predictions.jsonl")
  assert [(line["correct"], line["f1"]) for line in same] == [(True, 1.0)] * 8
  assert 0.8 <= metrics["exact_match"] <= metrics["f1"] < 1
  for one, other in zip(begun["evidence"], word["evidence"], strict=True):
    assert one["contains_characters"] == other["contains_answer"]
    assert not one["contains_answer"] and not other["contains_characters"]
  assert any(block["contains_answer"] for block in word["evidence"])


def test_the_control_reads_random_blocks_and_prefers_none(
  run, world, evaluate, tmp_path
):
  metrics = evaluate(candidates="random", max_examples=3, output_dir=tmp_path)
  assert (metrics["candidates"], metrics["index"]) == ("random", "random")
  assert metrics["num_questions"] == 3
  corpus = world.corpus
  lines = read_lines(tmp_path / "predictions.jsonl")
  assert [line["id"] for line in lines] == ["q0", "q1", "q2"]
  for line in lines:
    drawn = RandomIndex(corpus.num_blocks).search(
      QueryBatch(run.encode([line["question"]])), 20
    )
    names = [corpus.block(row).name for row in drawn.rows[0].tolist()]
    assert [e["block"] for e in line["evidence"]] == names
    assert [e["probability"] for e in line["evidence"]] == pytest.approx(
      [1 / 20] * 20, abs=1e-4
    )


def test_an_index_without_vectors_brings_its_own_scores(
  world, model_dir, run_config, questions, evaluate, tmp_path
):
  world.build_generation(
    model_dir, index=Bm25Config(), generations_dir=tmp_path / "bm25"
  )
  world.save_checkpoint(
    tmp_path / "run",
    generation=0,
    stage=OpenQa(index_scores=True, initial_scale=0.25),
  )
  metrics = evaluate(
    model_dir=tmp_path / "run",
    generation=tmp_path / "bm25",
    index_scores=True,
    output_dir=tmp_path,
  )
  # Another run's generation may be searched by it, too.
  retrieval = evaluate_retrieval(
    config=run_config,
    data=questions,
    index=Bm25Config(),
    output_dir=tmp_path,
  )
  assert metrics["index"] == retrieval["index"] == "bm25"
  other = Run.load(
    dataclasses.replace(run_config, generation=tmp_path / "bm25")
  )
  corpus, index = other.corpus, other.generation.index
  for line, alone in zip(
    read_lines(tmp_path / "predictions.jsonl"),
    read_lines(tmp_path / "retrieved.jsonl"),
    strict=True,
  ):
    found = index.search(QueryBatch(other.encode([line["question"]])), 20)
    # Open QA has learnt a scale.
    for scale, evidence in ((0.25, line["evidence"]), (1, alone["evidence"])):
      np.testing.assert_allclose(
        [e["score"] for e in evidence], scale * found.scores[0], atol=1e-4
      )
      assert [e["block"] for e in evidence] == [
        corpus.block(row).name for row in found.rows[0].tolist()
      ]


def test_that_there_are_no_questions_is_known_before_anything_is_loaded(
  evaluate, tmp_path
):
  (tmp_path / "empty.jsonl").touch()
  with pytest.raises(QuestionFileError, match="has no line"):
    evaluate(
      question_files={"test": tmp_path / "empty.jsonl"},
      model_dir=tmp_path / "nowhere",
    )
  with pytest.raises(ValueError, match="max_examples=0; want at least 1"):
    evaluate(max_examples=0, model_dir=tmp_path / "nowhere")


# --- Retrieval alone ----------------------------------------------------------


def test_it_finds_what_open_qa_finds(
  run_config, questions, evaluated, tmp_path
):
  metrics = evaluate_retrieval(
    config=run_config, data=questions, output_dir=tmp_path
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


def test_a_run_without_reader_searches_its_own_vectors(
  world, run_config, questions, tmp_path
):
  world.save_checkpoint(tmp_path, step=7, seed=1, stage=InverseCloze())
  arguments = {
    "config": dataclasses.replace(
      run_config, model_dir=tmp_path, num_searched=3
    ),
    "data": questions,
  }
  with pytest.raises(ValueError, match=r"wants generation 7.*has none.*--once"):
    evaluate_retrieval(**arguments)
  world.build_generation(tmp_path)
  metrics = evaluate_retrieval(**arguments)
  assert (metrics["checkpoint"], metrics["generation"]) == (7, 7)
  # Three are found, so recall at 5 is not known.
  assert {n for n in metrics if n.startswith("recall")} == {
    "recall_at_1",
    "recall_characters_at_1",
  }


# --- Questions that a task drops ----------------------------------------------


def test_lines_are_in_the_order_of_the_file(run_config, questions, tmp_path):
  path = tmp_path / "twenty.jsonl"
  words = ["when" if n in (0, 3, 8, 9) else "where" for n in range(20)]
  write_lines(
    path,
    [
      {"id": str(n), "question": f"{word} was Ada born?", "answer": ["1900"]}
      for n, word in enumerate(words)
    ],
  )
  whole = find_task("open_qa")
  seqio.TaskRegistry.add(
    "where_alone",
    source=whole.source,
    preprocessors=[
      *whole.preprocessors,
      lambda examples: examples.filter(
        lambda e: tf.strings.regex_full_match(e["question"], "where.*")
      ),
    ],
    output_features={"query": token_feature()},
  )
  # In row 0 two of three are dropped, so that later rows are ahead of it.
  data = dataclasses.replace(
    questions, task="where_alone", question_files={"test": path}
  )
  metrics = evaluate_retrieval(
    config=run_config, data=data, max_examples=18, output_dir=tmp_path
  )
  seqio.TaskRegistry.remove("where_alone")
  lines = read_lines(tmp_path / "retrieved.jsonl")
  kept = [n for n in range(18) if words[n] == "where"]
  assert [int(line["id"]) for line in lines] == kept
  assert metrics["num_questions"] == len(lines)


# --- Statements and other languages -------------------------------------------


def test_statements_are_filled_in_and_scored(
  run, run_config, questions, tmp_path
):
  texts = ["Ada was born in [MASK].", "[MASK] built the bridge of Tarn."]
  texts += ["Later Oda built the [MASK] of Mirá."]
  # The second answer has the number of wordpieces of the filling that is wrong.
  best = [explain(run, text).fillings[0].text for text in texts]
  answers = [best[0], "bridge" if best[1] != "bridge" else "born", best[2]]
  path = tmp_path / "statements.jsonl"
  pairs = zip(texts, answers, strict=True)
  write_lines(path, [{"question": x, "answer": [y]} for x, y in pairs])
  data = dataclasses.replace(questions, question_files={"test": path})
  given = {"config": run_config, "data": data, "output_dir": tmp_path}
  metrics = evaluate_masked_statements(**given)
  lines = read_lines(tmp_path / "predictions.jsonl")
  assert [line["prediction"] for line in lines] == best
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
  # What is predicted, with an article that only German has.
  predicted = [line["prediction"] for line in evaluated[1]]
  rows = [
    row | {"answer": [f"Die {answer}!"]}
    for row, answer in zip(tiny_world.questions(), predicted, strict=True)
  ]
  file = tmp_path / "questions.jsonl"
  write_lines(file, rows)
  metrics = evaluate(
    corpus_dir=german, question_files={"test": file}, output_dir=tmp_path
  )
  assert (metrics["language"], metrics["exact_match"]) == ("de", 1.0)
  for line in read_lines(tmp_path / "predictions.jsonl"):
    assert line["language"] == "de"
