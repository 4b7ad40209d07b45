"""Readers of five public data sets, which `benchmarks/README.md` lists."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.runs.jobs import PROJECT_DIR

# Default of --texts_dir, next to the clone.
TEXTS_DIR = PROJECT_DIR.parent / "shared" / "data"


class NoTextsError(OSError):
  """There is no folder of real texts."""


def read_texts(folder: Path) -> dict[str, list[str]]:
  """Reads all texts of the folder, by data set, in the order of the files.

  Raises:
    NoTextsError: There is no such folder.
  """
  _require(folder)
  readers = {
    "qed": _qed,
    "wikitext2": _wikitext,
    "nq_open": _nq_open,
    "webquestions": _webquestions,
    "curatedtrec": _curatedtrec,
  }
  return {name: list(read(folder / name)) for name, read in readers.items()}


def titled_paragraphs(folder: Path) -> list[tuple[str, str]]:
  """Reads titles and texts of QED's and WikiText-2's distinct paragraphs.

  Raises:
    NoTextsError: There is no such folder.
  """
  _require(folder)
  paragraphs = [
    (row["title_text"], row["paragraph_text"])
    for row in _json_lines(folder / "qed" / "qed_dev_part.jsonl")
  ]
  for row in _json_lines(folder / "wikitext2" / "articles.jsonl"):
    paragraphs += [(row["title"], text) for text in row["paragraphs"]]
  return list(dict.fromkeys(paragraphs))


def qed_questions(folder: Path) -> list[dict[str, Any]]:
  """Reads QED's questions, each with its answers.

  Raises:
    NoTextsError: There is no such folder.
  """
  _require(folder)
  return [
    {
      "question": row["question_text"],
      "answer": [
        span["string"] for spans in row["original_nq_answers"] for span in spans
      ],
    }
    for row in _json_lines(folder / "qed" / "qed_dev_part.jsonl")
  ]


def answers(folder: Path) -> list[str]:
  """Reads the distinct answers of NQ-open and WebQuestions.

  Raises:
    NoTextsError: There is no such folder.
  """
  _require(folder)
  rows = [
    row["answer"]
    for row in _json_lines(folder / "nq_open" / "NQ-open.dev.jsonl")
  ]
  for path in sorted((folder / "webquestions").glob("*.json")):
    questions = json.loads(path.read_text(encoding="utf-8"))
    rows += [question["answers"] for question in questions]
  return sorted({answer for group in rows for answer in group})


def answer_patterns(folder: Path) -> list[str]:
  """Reads CuratedTREC's distinct answers, which are regular expressions.

  Raises:
    NoTextsError: There is no such folder.
  """
  _require(folder)
  return sorted(
    {
      line.split("\t")[-1]
      for path in sorted((folder / "curatedtrec").glob("*.tsv"))
      for line in path.read_text(encoding="utf-8").splitlines()
    }
  )


def _require(folder: Path) -> None:
  if not folder.is_dir():
    raise NoTextsError(
      f"no texts in {folder}; benchmarks/README.md lists the files, and "
      "--texts_dir names another folder"
    )


def _qed(folder: Path) -> Iterator[str]:
  for row in _json_lines(folder / "qed_dev_part.jsonl"):
    yield row["title_text"]
    yield row["paragraph_text"]
    yield row["question_text"]


def _wikitext(folder: Path) -> Iterator[str]:
  for row in _json_lines(folder / "articles.jsonl"):
    yield row["title"]
    yield from row["paragraphs"]


def _nq_open(folder: Path) -> Iterator[str]:
  for row in _json_lines(folder / "NQ-open.dev.jsonl"):
    yield row["question"]
    yield from row["answer"]


def _webquestions(folder: Path) -> Iterator[str]:
  for path in sorted(folder.glob("*.json")):
    for row in json.loads(path.read_text(encoding="utf-8")):
      yield row["qText"]
      yield from row["answers"]


def _curatedtrec(folder: Path) -> Iterator[str]:
  for path in sorted(folder.glob("*.tsv")):
    for line in path.read_text(encoding="utf-8").splitlines():
      yield line.split("\t")[2]


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
  with path.open(encoding="utf-8") as lines:
    for line in lines:
      yield json.loads(line)
