"""Stores: what they hold, when they are made again, and what reads them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realm_jax.answers.in_blocks import AnswersInBlocks, QuestionAnswers
from realm_jax.answers.run_answers import RunAnswers, answers_of_task
from realm_jax.answers.store import (
  AnswersError,
  AnswerStore,
  automaton_of,
  build_store,
  find_answers,
  store_key,
)
from realm_jax.corpus.store import Corpus
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning.agreement import Agreement
from realm_jax.text import patterns
from realm_jax.text.answers import contains_characters
from realm_jax.text.patterns import Pattern
from tests import tiny_world
from tests.corpus.updated import text_of

STRINGS = ("1900", "Mirá", "Nowhere", "Stone", "bridge of", "r")
PATTERNS = ("(", r"\b19\d5\b", "nowhere", "tarn|pola")


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


@pytest.fixture(scope="module")
def world(tmp_path_factory):
  return tiny_world.build(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def built(world, tmp_path_factory):
  corpus, answers = world.corpus, STRINGS
  directory = tmp_path_factory.mktemp("built") / "store"
  build_store(directory, corpus, answers)
  return corpus, answers, directory


def test_two_processes_make_the_same_store(built, tmp_path):
  corpus, answers, directory = built
  build_store(tmp_path / "s", corpus, answers, num_workers=2)
  names = sorted(path.name for path in directory.iterdir())
  assert names == sorted(path.name for path in (tmp_path / "s").iterdir())
  for name in names:
    made = (tmp_path / "s" / name).read_bytes()
    assert made == (directory / name).read_bytes(), name


def test_stored_and_searched_answers_are_those_in_the_texts(built):
  corpus, answers, directory = built
  store = AnswerStore.open(directory, store_key(corpus, answers))
  stored = AnswersInBlocks(corpus, answers, store)
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


def test_patterns_are_searched_in_each_block_once(world, monkeypatch):
  corpus, read = world.corpus, []
  bodies = corpus.bodies_utf8
  monkeypatch.setattr(
    corpus, "bodies_utf8", lambda rows: read.extend(rows) or bodies(rows)
  )
  in_blocks = AnswersInBlocks(corpus)
  rng = np.random.default_rng(0)
  for pattern in PATTERNS:
    read.clear()
    for _ in range(3):
      rows = rng.permutation(corpus.num_blocks)[:15]
      question = QuestionAnswers("regex", [pattern], [])
      found = in_blocks.contained(question, rows)
      expected = [
        pattern != "(" and Pattern(pattern).occurs(body.decode())
        for body in bodies(rows)
      ]
      assert found.tolist() == expected
    assert len(set(read)) == len(read)


def test_a_pattern_that_is_too_slow_matches_nothing(world):
  in_blocks = AnswersInBlocks(world.corpus)
  question = QuestionAnswers("regex", [r"((\w|\s)+)+\Z#"], [])
  rows = np.arange(world.corpus.num_blocks)
  assert not in_blocks.contained(question, rows).any()


def _data(world, **fields) -> DataConfig:
  return DataConfig(
    task="open_qa",
    corpus_dir=world.corpus_dir,
    question_files={"train": world.question_file},
    batch_size=2,
    query_length=tiny_world.QUERY_LENGTH,
    block_length=tiny_world.BLOCK_LENGTH,
    **fields,
  )


def _store_of(model_dir) -> Path:
  (store,) = (model_dir / "answers").iterdir()
  return store


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["none", "changed", "no manifest"])
def test_a_run_makes_a_damaged_store_again_and_no_other(
  world, tmp_path, damage
):
  def opened():
    answers = RunAnswers(tmp_path, _data(world), agreement=Agreement("answers"))
    return answers.of(world.corpus)

  opened()
  store = _store_of(tmp_path)
  with pytest.raises(AnswersError, match="other answers"):
    AnswerStore.open(store, "another key")
  whole = {path.name: path.read_bytes() for path in store.iterdir()}
  made_at = (store / "rows.npy").stat().st_mtime_ns
  if damage == "changed":
    (store / "rows.npy").write_bytes(whole["rows.npy"][:-1] + b"?")
  elif damage == "no manifest":
    (store / "answers.json").unlink()
  opened()
  assert {
    p.name: p.read_bytes() for p in _store_of(tmp_path).iterdir()
  } == whole
  again = (store / "rows.npy").stat().st_mtime_ns
  assert (again == made_at) == (damage == "none")


def test_the_answers_of_a_task_are_those_of_all_its_questions(world):
  asked = [q["answer"][0] for q in tiny_world.questions()]
  found = answers_of_task(_data(world))
  assert found == tuple(sorted(set(asked)))


def test_patterns_of_a_task_and_a_warning_of_a_bad_one(world, tmp_path, caplog):
  questions = [
    {"question": "who?", "answer": [pattern, "tarn"]} for pattern in PATTERNS
  ]
  path = tmp_path / "patterns.jsonl"
  path.write_text("\n".join(map(json.dumps, questions)))
  data = dataclasses.replace(
    _data(world), task="open_qa_regex", question_files={"train": path}
  )
  answers = RunAnswers(tmp_path, data, agreement=Agreement("answers"))
  in_blocks = answers.of(world.corpus)
  question = QuestionAnswers("regex", ["(", "tarn"], [])
  rows = np.arange(world.corpus.num_blocks)
  patterns.compiled.cache_clear()
  contained = in_blocks.contained(question, rows)
  assert "'(' matches nothing: missing )" in caplog.text
  assert contained.tolist() == [
    "Tarn" in world.corpus.block(row).body for row in rows.tolist()
  ]
  row = int(np.argmax(contained))
  (start, limit), *_ = in_blocks.pattern_spans(["(", "tarn"], row)
  assert text_of(world.corpus.block(row), start, limit) == "Tarn"
