"""Stores: what they hold, when they are made again, and what reads them."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.answers import patterns
from realm_jax.answers.match import contains_characters
from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.answers.run_answers import RunAnswers, answers_of_task
from realm_jax.answers.store import (
  AnswersError,
  AnswerStore,
  automaton_of,
  build_store,
  find_answers,
)
from realm_jax.corpus.store import Corpus
from realm_jax.inputs.batch import QuestionAnswers
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning.agreement import Agreement
from tests import tiny_world
from tests.corpus.conftest import text_of

STRINGS = ("1900", "Mirá", "Nowhere", "Stone", "bridge of", "r")


TEXTS = st.lists(st.text("#ab1 é", max_size=8), max_size=5)
ANSWERS = st.sets(
  st.text("ab1é", min_size=1, max_size=3), min_size=1, max_size=6
)


class _Texts(Corpus):
  """Blocks that have a text and nothing else."""

  def __init__(self, texts):
    self._texts = texts

  def bodies_utf8(self, rows):
    return [self._texts[row].encode() for row in rows]


@given(TEXTS, ANSWERS)
def test_all_answers_in_all_blocks_are_each_in_each(texts, strings):
  answers = sorted(strings)
  expected = [
    (number, block)
    for number, string in enumerate(answers)
    for block, text in enumerate(texts)
    if contains_characters(text.encode(), [string])
  ]
  pairs = find_answers(
    automaton_of(answers), _Texts(texts), np.arange(len(texts))
  )
  assert [*zip(*map(np.ndarray.tolist, pairs), strict=True)] == expected


def test_a_pattern_is_looked_for_in_blocks_that_are_listed_twice():
  """As a second search may find what the first has found."""
  rows = np.tile(np.arange(0, 9999, 101), 2)
  corpus = _Texts({row: "ab"[row % 2] for row in rows.tolist()})
  question = QuestionAnswers("regex", ["b"], [])
  contained = AnswersInBlocks(corpus).contained(question, rows)
  np.testing.assert_array_equal(contained, rows % 2 == 1)


def contents(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_stored_and_searched_answers_are_those_in_the_texts(
  world, tmp_path, monkeypatch
):
  corpus, one, two = world.corpus, tmp_path / "one", tmp_path / "two"
  build_store(one, corpus, STRINGS)
  monkeypatch.setattr("realm_jax.answers.store._BLOCKS_PER_WORKER", 1)
  build_store(two, corpus, STRINGS)
  assert contents(one) == contents(two)
  stored = AnswersInBlocks(corpus, AnswerStore(one, corpus, STRINGS))
  searched = AnswersInBlocks(corpus)
  rows = np.random.default_rng(0).permutation(corpus.num_blocks)[:20]
  num_true = 0
  for string in (*STRINGS, "not stored", "in Tarn"):
    question = QuestionAnswers("string", [string], [])
    expected = [
      contains_characters(body, [string]) for body in corpus.bodies_utf8(rows)
    ]
    for found in (stored, searched):
      assert found.contained(question, rows).tolist() == expected
    num_true += sum(expected)
  assert num_true
  # What a stranger's manifest names outside of its folder is not read.
  manifest = two / "answers.json"
  manifest.write_text(manifest.read_text().replace('"rows', '"../one/rows'))
  with pytest.raises(AnswersError, match="no whole store"):
    AnswerStore(two, corpus, STRINGS)


def _data(world) -> DataConfig:
  return DataConfig(
    task="open_qa",
    corpus_dir=world.corpus_dir,
    question_files={"train": world.question_file},
    batch_size=2,
    query_length=tiny_world.QUERY_LENGTH,
    block_length=tiny_world.BLOCK_LENGTH,
  )


@pytest.mark.slow
def test_a_run_makes_a_damaged_store_again_and_no_other(world, tmp_path):
  asked = [question["answer"][0] for question in tiny_world.questions()]
  assert answers_of_task(_data(world)) == tuple(sorted(set(asked)))

  def opened():
    answers = RunAnswers(tmp_path, _data(world), agreement=Agreement("answers"))
    answers.of(world.corpus)
    (store,) = (tmp_path / "answers").iterdir()
    return store

  store = opened()
  with pytest.raises(AnswersError, match="other answers"):
    AnswerStore(store, world.corpus, ["another answer"])
  whole, rows = contents(store), store / "rows.npy"
  made_at = rows.stat().st_mtime_ns
  opened()
  assert rows.stat().st_mtime_ns == made_at
  rows.write_bytes(whole["rows.npy"][:-1] + b"?")
  assert contents(opened()) == whole
  (store / "answers.json").unlink()
  assert contents(opened()) == whole


def test_patterns_of_a_task_and_a_warning_of_a_bad_one(world, tmp_path, caplog):
  path, corpus = tmp_path / "patterns.jsonl", world.corpus
  path.write_text(json.dumps({"question": "who?", "answer": ["(", "tarn"]}))
  data = dataclasses.replace(
    _data(world), task="open_qa_regex", question_files={"train": path}
  )
  answers = RunAnswers(tmp_path, data, agreement=Agreement("answers"))
  in_blocks = answers.of(corpus)
  patterns.compiled.cache_clear()
  rows = np.arange(corpus.num_blocks)
  question = QuestionAnswers("regex", ["(", "tarn"], [])
  # Of some blocks it is known the second time.
  in_blocks.contained(question, rows[::-3])
  contained = in_blocks.contained(question, rows)
  assert "'(' matches nothing: missing )" in caplog.text
  assert contained.tolist() == [
    "Tarn" in corpus.block(row).text for row in rows.tolist()
  ]
  row = int(np.argmax(contained))
  (start, limit), *_ = in_blocks.pattern_spans(["(", "tarn"], row)
  assert text_of(corpus.block(row), start, limit) == "Tarn"
