"""WebQuestions: questions of Google Suggest, with answers from Freebase.

Berant et al. 2013. Its files go by several names: those of the original
release, the same converted by DrQA, the edition of brmson with ids, and what
ORQA's release divided.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from realm_jax.inputs.published import (
  Files,
  PublishedSource,
  Tfds,
  distinct,
  json_file,
  json_lines,
)
from realm_jax.inputs.questions import Question
from tasks import open_qa

# An item of `(list (description Lawyer) (description "New York City"))`.
_DESCRIPTION = re.compile(r'\(description (?:"([^"]*)"|([^()]*))\)')


def read_brmson(path: epath.Path) -> Iterator[Question]:
  """Reads the edition of brmson, `{"qText": …, "answers": […], "qId": …}`."""
  for entry in json_file(path):
    yield Question(entry["qText"], entry["answers"], entry["qId"])


def read_release(path: epath.Path) -> Iterator[Question]:
  """Reads the original release, `{"utterance": …, "targetValue": …}`."""
  for entry in json_file(path):
    found = _DESCRIPTION.findall(entry["targetValue"])
    answers = distinct([quoted or bare for quoted, bare in found])
    yield Question(entry["utterance"], answers)


def read_tfds(record: Mapping[str, Any]) -> Question:
  """Makes a question of a record of TFDS's `web_questions`."""
  answers = [answer.decode() for answer in record["answers"]]
  return Question(record["question"].decode(), answers)


open_qa.add(
  "web_questions",
  PublishedSource(
    "WebQuestions",
    sizes={"train": 3_417, "dev": 361, "test": 2_032},
    files=[
      Files(
        names={
          "train": ["trainmodel.json", "val.json", "devtest.json"],
          "test": ["test.json"],
        },
        read=read_brmson,
      ),
      Files(
        names={
          "train": ["webquestions.examples.train.json"],
          "test": ["webquestions.examples.test.json"],
        },
        read=read_release,
      ),
      Files(
        names={
          "train": ["WebQuestions-train.txt"],
          "test": ["WebQuestions-test.txt"],
        },
        read=json_lines,
      ),
      Files(
        names={
          split: [f"WebQuestions.resplit.{split}.jsonl"]
          for split in ("train", "dev", "test")
        },
        read=json_lines,
      ),
    ],
    tfds=Tfds(
      builder="web_questions",
      names={"train": "train", "test": "test"},
      read=read_tfds,
    ),
    get=(
      "git clone https://github.com/brmson/dataset-factoid-webquestions, "
      "folder main"
    ),
  ),
)
