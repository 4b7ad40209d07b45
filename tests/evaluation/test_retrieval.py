"""Retrieval alone agrees with the retrieval of open QA."""

import dataclasses

import numpy as np
import pytest

from realm_jax.evaluation.retrieval import evaluate_retrieval
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.protocol import Blocks, QueryBatch
from realm_jax.training.stages.inverse_cloze import InverseCloze
from tests.evaluation.lines import read_lines

pytestmark = pytest.mark.slow


def test_it_finds_what_open_qa_finds(source, questions, evaluated, tmp_path):
  metrics = evaluate_retrieval(
    source=source, data=questions, num_searched=20, output_dir=tmp_path
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
  world, source, questions, tmp_path
):
  world.save_checkpoint(tmp_path, step=7, seed=1, stage=InverseCloze())
  arguments = {
    "source": dataclasses.replace(source, model_dir=tmp_path, reader=None),
    "data": questions,
    "num_searched": 3,
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


def test_bm25_ranks_the_same_blocks_by_its_own_scores(
  world, source, questions, tmp_path
):
  metrics = evaluate_retrieval(
    source=source,
    data=questions,
    index=Bm25Config(),
    num_searched=20,
    output_dir=tmp_path,
  )
  assert metrics["index"] == "bm25"
  corpus = world.corpus
  tokens = [corpus.block(row).token_ids for row in range(corpus.num_blocks)]
  index = Bm25Config().build(
    Blocks(
      num_blocks=corpus.num_blocks,
      token_ids=tokens.__getitem__,
      vocab_size=corpus.vocab_size,
    )
  )
  for line in read_lines(tmp_path / "retrieved.jsonl"):
    words = corpus.vocabulary.encode(line["question"])
    found = index.search(QueryBatch(np.array([words], np.int32)), 20)
    assert [e["score"] for e in line["evidence"]] == pytest.approx(
      found.scores[0].tolist(), abs=1e-4
    )
    assert [e["block"] for e in line["evidence"]] == [
      corpus.block(row).name for row in found.rows[0].tolist()
    ]
