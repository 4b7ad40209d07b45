"""SQuAD as open-domain questions, without their paragraphs.

Its questions were written from a paragraph, and often make sense beside it
alone. What SQuAD 1.1 publishes as its development set is the test set; XQuAD's
English part is a sample of that. Lee et al. 2019 have 78,713 questions in
"train" and 8,886 in "dev", and did not release how they divided them.
"""

from collections.abc import Mapping
from typing import Any

from realm_jax.inputs.published import (
  Files,
  PublishedSource,
  Tfds,
  distinct,
  squad,
)
from realm_jax.inputs.questions import Question
from tasks import open_qa

_URL = "https://rajpurkar.github.io/SQuAD-explorer/dataset"


def read_tfds(record: Mapping[str, Any]) -> Question:
  """Makes a question of a record of TFDS's `squad`."""
  answers = distinct([text.decode() for text in record["answers"]["text"]])
  return Question(record["question"].decode(), answers, record["id"].decode())


open_qa.add(
  "squad_open",
  PublishedSource(
    "SQuAD (open)",
    sizes={"train+dev": 87_599, "test": 10_570},
    files=[
      Files(
        names={"train": ["train-v1.1.json"], "test": ["dev-v1.1.json"]},
        read=squad,
      ),
      # DrQA's names of the same files.
      Files(
        names={
          "train": ["SQuAD-v1.1-train.json"],
          "test": ["SQuAD-v1.1-dev.json"],
        },
        read=squad,
      ),
      Files(
        names={"test": ["xquad.en.json"]}, read=squad, sizes={"test": 1_190}
      ),
    ],
    tfds=Tfds(
      builder="squad/v1.1",
      names={"train": "train", "test": "validation"},
      read=read_tfds,
    ),
    get=f"wget {_URL}/train-v1.1.json {_URL}/dev-v1.1.json",
  ),
)
