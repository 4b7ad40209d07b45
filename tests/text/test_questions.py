"""Which questions are the same."""

import json

import pytest

from realm_jax.text.questions import normalize_question


@pytest.mark.parametrize(
  ("one", "other"),
  [
    ("Who wrote 'Emma'?", "who wrote emma"),
    ("who's  the \tBOSS ?", "Who’s the boss?"),
    ("where is São Paulo", "where is sao paulo?"),
    ("what is 1/2 of it", "what is 1 2 of it?"),
  ],
)
def test_editions_of_one_question_are_the_same(one, other):
  assert normalize_question(one) == normalize_question(other)


def test_other_questions_are_not():
  assert normalize_question("who is he?") != normalize_question("who is she?")
  assert normalize_question("in 1945") != normalize_question("in 1946")


def test_qed_shares_806_questions_with_nq_open(shared_data):
  def questions(path, field):
    lines = (shared_data / path).read_text().splitlines()
    return {normalize_question(json.loads(line)[field]) for line in lines}

  qed = questions("qed/qed_dev_part.jsonl", "question_text")
  nq = questions("nq_open/NQ-open.dev.jsonl", "question")
  assert len(qed & nq) == 806
