"""CuratedTREC: questions of TREC's tracks, with patterns as answers.

An answer is a regular expression. The published counts (Lee et al. 2019) are
those of DrQA's files. The edition of brmson has a part of these questions,
"curated", and a set that holds them and more, "large2470"; its folder has both,
so name a file of the one that is meant.
"""

from collections.abc import Iterator

from etils import epath

from realm_jax.inputs.published import (
  Files,
  PublishedSource,
  json_lines,
)
from realm_jax.inputs.questions import Question, QuestionFileError
from tasks import open_qa

_NUM_COLUMNS = 4


def read_tsv(path: epath.Path) -> Iterator[Question]:
  """Reads lines of an id, a type, a question and a pattern.

  Raises:
    QuestionFileError: A line has more or fewer columns.
  """
  with path.open() as lines:
    for number, line in enumerate(lines, start=1):
      columns = line.rstrip("\r\n").split("\t")
      if len(columns) != _NUM_COLUMNS:
        raise QuestionFileError(
          f"{path}, line {number}, has {len(columns)} columns; wanted an id, a "
          "type, a question and a pattern, between tabs"
        )
      question_id, _, question, pattern = columns
      yield Question(question, [pattern], question_id)


open_qa.add(
  "curated_trec",
  PublishedSource(
    "CuratedTREC",
    sizes={"train": 1_353, "dev": 133, "test": 694},
    files=[
      Files(
        names={
          "train": ["CuratedTrec-train.txt"],
          "test": ["CuratedTrec-test.txt"],
        },
        read=json_lines,
      ),
      Files(
        names={
          split: [f"CuratedTrec.resplit.{split}.jsonl"]
          for split in ("train", "dev", "test")
        },
        read=json_lines,
      ),
      Files(
        names={"train": ["curated-train.tsv"], "test": ["curated-test.tsv"]},
        read=read_tsv,
        # 430 for training and 430 to test.
        sizes={"train": 382, "dev": 48, "test": 430},
      ),
      Files(
        names={
          "train": ["large2470-train.tsv"],
          "test": ["large2470-test.tsv"],
        },
        read=read_tsv,
        # 1,704 for training and 766 to test.
        sizes={"train": 1_549, "dev": 155, "test": 766},
      ),
    ],
    get="wget https://dl.fbaipublicfiles.com/drqa/CuratedTrec.tar.gz",
    answer_kind="regex",
  ),
)
