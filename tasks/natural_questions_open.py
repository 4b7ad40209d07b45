"""Natural Questions (open): questions that people asked Google.

Lee et al. 2019 (arXiv 1906.00300) kept the questions of Natural Questions that
have an answer of at most 5 tokens. What NQ-open publishes as its development
set is the field's test set.
"""

from collections.abc import Mapping
from typing import Any

from realm_jax.inputs.published import (
  Files,
  PublishedSource,
  Tfds,
  json_lines,
)
from realm_jax.inputs.questions import Question
from tasks import open_qa

_URL = (
  "https://raw.githubusercontent.com/google-research-datasets/"
  "natural-questions/master/nq_open"
)


def read_tfds(record: Mapping[str, Any]) -> Question:
  """Makes a question of a record of TFDS's `natural_questions_open`."""
  answers = [answer.decode() for answer in record["answer"]]
  return Question(record["question"].decode(), answers)


open_qa.add(
  "natural_questions_open",
  PublishedSource(
    "Natural Questions (open)",
    sizes={"train": 79_168, "dev": 8_757, "test": 3_610},
    files=[
      Files(
        names={"train": ["NQ-open.train.jsonl"], "test": ["NQ-open.dev.jsonl"]},
        read=json_lines,
      ),
      # As ORQA's release divided them (gs://orqa-data/resplit).
      Files(
        names={
          split: [f"NaturalQuestions.resplit.{split}.jsonl"]
          for split in ("train", "dev", "test")
        },
        read=json_lines,
      ),
    ],
    tfds=Tfds(
      builder="natural_questions_open",
      names={"train": "train", "test": "validation"},
      read=read_tfds,
    ),
    get=f"wget {_URL}/NQ-open.train.jsonl {_URL}/NQ-open.dev.jsonl",
  ),
)
