"""Published data sets of questions, as reported in papers.

    natural_questions_open   questions to Google, with answers of at most 5
                             tokens (Lee et al. 2019, arXiv 1906.00300)
    web_questions            questions from Google Suggest, with answers from
                             Freebase (Berant et al. 2013)
    curated_trec             questions of TREC's tracks; answers are regular
                             expressions
    squad_open               SQuAD's questions, without their paragraphs
    trivia_qa_open           TriviaQA's unfiltered questions, without documents;
                             all aliases of an answer are right
    entity_questions         questions about entities, from Wikidata, one file
                             for each relation (Sciavolino et al. 2021, arXiv
                             2109.08535)
    hotpot_qa                questions that need two articles, with their titles
                             (Yang et al. 2018, arXiv 1809.09600)

The test sets in the literature are the published development sets of NQ-open,
SQuAD and TriviaQA. Lee et al. did not release their split of SQuAD's and
TriviaQA's training questions: 78,713 and 8,886, and 78,785 and 8,837.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils import epath

from realm_jax.inputs.config import TaskError
from realm_jax.inputs.published import Form, PublishedSource
from realm_jax.inputs.question_files import (
  Question,
  read_json_lines,
  read_question,
)
from realm_jax.storage.json_files import JsonValue
from realm_jax.tasks import open_qa

_Reader = Callable[[epath.Path], Iterator[Question]]


def json_lines(path: epath.Path) -> Iterator[Question]:
  """Reads lines of `{"question": …, "answer": […]}`, as in NQ-open and DrQA.

  An empty list of answers is kept, as published.
  """

  def to_question(fields: Mapping[str, JsonValue]) -> Question:
    if fields.get("answer") == []:
      return Question(str(fields["question"]), [])
    return read_question(fields)

  return read_json_lines(path, to_question)


def json_entries(to_question: Callable[[Any], Question]) -> _Reader:
  """Returns a reader of files with a JSON list."""

  def read(path: epath.Path) -> Iterator[Question]:
    return map(to_question, _json(path))

  return read


def _json(path: epath.Path) -> Any:
  try:
    return json.loads(path.read_text())
  except ValueError as error:
    raise TaskError(f"{path} is not JSON: {error}") from error


def tsv(path: epath.Path) -> Iterator[Question]:
  """Reads lines with an id, a type, a question and a pattern, as in brmson."""
  with path.open() as lines:
    for number, line in enumerate(lines, start=1):
      columns = line.rstrip("\r\n").split("\t")
      if len(columns) != 4:
        raise TaskError(
          f"{path}, line {number}, has {len(columns)} columns; wanted an id, a "
          "type, a question and a pattern, between tabs"
        )
      question_id, _, question, pattern = columns
      yield Question(question, [pattern], question_id)


def squad(path: epath.Path) -> Iterator[Question]:
  """Reads SQuAD's format, version 1.1: the questions of all paragraphs."""
  for article in _json(path)["data"]:
    for paragraph in article["paragraphs"]:
      for entry in paragraph["qas"]:
        answers = dict.fromkeys(answer["text"] for answer in entry["answers"])
        yield Question(entry["question"], [*answers], entry["id"])


def trivia_qa(path: epath.Path) -> Iterator[Question]:
  """Reads `{"Data": [{"Question": …, "QuestionId": …, "Answer": …}, …]}`.

  The file also has 600 MB of search results, so entries are decoded one by one.
  """
  text = path.read_text()
  begin = re.search(r'"Data"\s*:\s*\[[\s,]*', text)
  if begin is None:
    raise TaskError(f'{path} has no "Data"; wanted TriviaQA\'s JSON')
  place, separator = begin.end(), re.compile(r"[\s,]*")
  while not text.startswith("]", place):
    try:
      entry, place = json.JSONDecoder().raw_decode(text, place)
    except ValueError as error:
      raise TaskError(f"{path} is not JSON: {error}") from error
    gap = separator.match(text, place)
    place = gap.end() if gap else place
    answer = entry["Answer"]
    texts = [text.strip() for text in (answer["Value"], *answer["Aliases"])]
    answers = [*dict.fromkeys(filter(None, texts))]
    yield Question(entry["Question"].strip(), answers, entry["QuestionId"])


def _released(entry: Mapping[str, Any]) -> Question:
  """Reads WebQuestions' original release.

  Answers are `(list (description Lawyer) (description "New York City"))`.
  """
  matches = re.findall(
    r'\(description (?:"([^"]*)"|([^()]*))\)', entry["targetValue"]
  )
  answers = dict.fromkeys(quoted or bare for quoted, bare in matches)
  return Question(entry["utterance"], [*answers])


def _brmson(entry: Mapping[str, Any]) -> Question:
  """Reads the edition of brmson, which has ids."""
  return Question(entry["qText"], entry["answers"], entry["qId"])


def _entity_question(entry: Mapping[str, Any]) -> Question:
  return Question(entry["question"], entry["answers"])


def _files(
  read: _Reader, train: str, test: str, sizes: Mapping[str, int] | None = None
) -> Form:
  """Returns a form without a development set; spaces separate files."""
  names = {"train": train.split(), "test": test.split()}
  return Form(names=names, read=read, sizes=sizes)


def _divided(read: _Reader, pattern: str) -> Form:
  """Returns a form with all splits, such as ORQA's release."""
  splits = ("train", "dev", "test")
  names = {split: [pattern.replace("SPLIT", split)] for split in splits}
  return Form(names=names, read=read)


_NQ = (
  "https://raw.githubusercontent.com/google-research-datasets/"
  "natural-questions/master/nq_open"
)
_HOTPOT = "http://curtis.ml.cmu.edu/datasets/hotpot"
_SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset"

open_qa.add(
  "natural_questions_open",
  PublishedSource(
    "Natural Questions (open)",
    sizes={"train": 79_168, "dev": 8_757, "test": 3_610},
    files=[
      _files(json_lines, "NQ-open.train.jsonl", "NQ-open.dev.jsonl"),
      _divided(json_lines, "NaturalQuestions.resplit.SPLIT.jsonl"),
    ],
    tfds="natural_questions_open",
    get=f"wget {_NQ}/NQ-open.train.jsonl {_NQ}/NQ-open.dev.jsonl",
  ),
)
open_qa.add(
  "web_questions",
  PublishedSource(
    "WebQuestions",
    sizes={"train": 3_417, "dev": 361, "test": 2_032},
    files=[
      _files(
        json_entries(_brmson),
        "trainmodel.json val.json devtest.json",
        "test.json",
      ),
      _files(
        json_entries(_released),
        "webquestions.examples.train.json",
        "webquestions.examples.test.json",
      ),
      _files(json_lines, "WebQuestions-train.txt", "WebQuestions-test.txt"),
      _divided(json_lines, "WebQuestions.resplit.SPLIT.jsonl"),
    ],
    tfds="web_questions",
    tfds_test="test",
    get=(
      "git clone https://github.com/brmson/dataset-factoid-webquestions, "
      "folder main"
    ),
  ),
)
# The published counts are from DrQA's files. The edition of brmson has a part
# of these questions, "curated", and a larger set.
open_qa.add(
  "curated_trec",
  PublishedSource(
    "CuratedTREC",
    sizes={"train": 1_353, "dev": 133, "test": 694},
    files=[
      _files(json_lines, "CuratedTrec-train.txt", "CuratedTrec-test.txt"),
      _divided(json_lines, "CuratedTrec.resplit.SPLIT.jsonl"),
      _files(
        tsv,
        "curated-train.tsv",
        "curated-test.tsv",
        {"train": 382, "dev": 48, "test": 430},
      ),
      _files(
        tsv,
        "large2470-train.tsv",
        "large2470-test.tsv",
        {"train": 1_549, "dev": 155, "test": 766},
      ),
    ],
    get="wget https://dl.fbaipublicfiles.com/drqa/CuratedTrec.tar.gz",
    answer_kind="regex",
  ),
)
open_qa.add(
  "squad_open",
  PublishedSource(
    "SQuAD (open)",
    sizes={"train+dev": 87_599, "test": 10_570},
    files=[
      _files(squad, "train-v1.1.json", "dev-v1.1.json"),
      # DrQA's names of the same files.
      _files(squad, "SQuAD-v1.1-train.json", "SQuAD-v1.1-dev.json"),
      # A sample of the test set.
      Form(
        names={"test": ["xquad.en.json"]}, read=squad, sizes={"test": 1_190}
      ),
    ],
    tfds="squad/v1.1",
    get=f"wget {_SQUAD}/train-v1.1.json {_SQUAD}/dev-v1.1.json",
  ),
)
open_qa.add(
  "trivia_qa_open",
  PublishedSource(
    "TriviaQA (open)",
    sizes={"train+dev": 87_622, "test": 11_313},
    files=[
      _files(trivia_qa, "unfiltered-web-train.json", "unfiltered-web-dev.json")
    ],
    tfds="trivia_qa/unfiltered.nocontext",
    get=(
      "wget http://nlp.cs.washington.edu/triviaqa/data/"
      "triviaqa-unfiltered.tar.gz"
    ),
  ),
)
open_qa.add(
  "entity_questions",
  PublishedSource(
    "EntityQuestions",
    sizes={"test": 22_075},
    files=[_divided(json_entries(_entity_question), "SPLIT/P*.SPLIT.json")],
    get=(
      "wget https://nlp.cs.princeton.edu/projects/entity-questions/dataset.zip"
    ),
  ),
)
open_qa.add(
  "hotpot_qa",
  PublishedSource(
    "HotpotQA",
    sizes={"train+dev": 90_447, "test": 7_405},
    files=[
      _files(
        json_entries(read_question),
        "hotpot_train_v1.1.json",
        f"hotpot_dev_{setting}_v1.json",
      )
      for setting in ("fullwiki", "distractor")
    ],
    get=(
      f"wget {_HOTPOT}/hotpot_train_v1.1.json "
      f"{_HOTPOT}/hotpot_dev_fullwiki_v1.json"
    ),
  ),
)
