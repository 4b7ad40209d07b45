"""Breakdowns, and the tables of an evaluation."""

import pytest

from realm_jax.evaluation.scoring.breakdowns import answer_length, question_word
from realm_jax.evaluation.scoring.summary import summarize
from tests.evaluation.scoring.lines import line


@pytest.mark.parametrize(
  ("question", "word"),
  [
    ("who wrote it", "who"),
    ("Whose book is it?", "who"),
    ("in what year was it written", "what"),
    ("how many books are there", "how many"),
    ("How is it when it rains", "how"),
    ("the author of it", "other"),
    ("what's it called", "what"),
    # No whole word: "whatever", "showing".
    ("whatever is showing", "other"),
  ],
)
def test_the_question_word(question, word):
  assert question_word(line(0, question=question)) == word


@pytest.mark.parametrize(
  ("references", "length"),
  [
    (["the moon", "14 December 1972"], "1 word"),
    (["U.S. Army"], "2 words"),
    (["one two three four five six"], "5 or more words"),
    (["the"], "0 words"),
  ],
)
def test_the_length_of_the_shortest_answer(references, length):
  assert answer_length(line(0, references=references)) == length
  pattern = line(0, references=references, answer_kind="regex")
  assert answer_length(pattern) == "pattern"


def test_each_group_has_the_figures_of_its_questions():
  figures = summarize(
    [
      line(0, prediction="x", correct=True, f1=1.0, words=[0]),
      line(1, question="when ?", prediction="y", f1=0.5, words=[2]),
      line(2, prediction="z", references=["y z"]),
    ]
  )
  assert figures["num_questions"] == 3
  assert figures["exact_match"] == pytest.approx(1 / 3)
  words = figures["by_question_word"]
  assert list(words) == ["who", "when"]
  assert words["when"] == {
    "num_questions": 1,
    "exact_match": 0.0,
    "f1": 0.5,
    "recall_at_5": 1.0,
    "mrr": pytest.approx(1 / 3),
  }
  assert figures["by_answer_length"]["1 word"]["exact_match"] == 0.5
  low, high = figures["intervals"]["exact_match"]
  assert 0 <= low <= 1 / 3 <= high <= 1
