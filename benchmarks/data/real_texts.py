"""Readers of five public data sets, which `benchmarks/README.md` lists."""

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.runs.jobs import PROJECT_DIR

# A line of a question file: the question and the list of its answers.
Question: TypeAlias = dict[str, Any]

_TRAIN_SHARE = 0.8
_WORD = re.compile(r"\w+")
_APOSTROPHES = re.compile("['’]")
_NO_WORD = re.compile(r"[\W_]+")

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
  """Reads titles and texts of the distinct paragraphs, a corpus of real text.

  They are those of QED, of WikiText-2 and of XQuAD.

  Raises:
    NoTextsError: There is no such folder.
  """
  _require(folder)
  paragraphs = [
    (row["title_text"], row["paragraph_text"]) for row in _qed_rows(folder)
  ]
  for row in _json_lines(folder / "wikitext2" / "articles.jsonl"):
    paragraphs += [(row["title"], text) for text in row["paragraphs"]]
  for title, paragraph in _xquad_paragraphs(folder):
    paragraphs.append((title, paragraph["context"]))
  return list(dict.fromkeys(paragraphs))


def held_out_questions(folder: Path) -> list[Question]:
  """Reads the last fifth of QED's questions, which nothing is trained on.

  Raises:
    NoTextsError: There is no such folder.
  """
  questions = _qed_questions(folder)
  return questions[int(_TRAIN_SHARE * len(questions)) :]


def training_questions(
  folder: Path, *, web_questions: bool = True
) -> list[Question]:
  """Reads questions with answers in the corpus of `titled_paragraphs`.

  They are the first four fifths of QED's; those of XQuAD, which were written
  for its paragraphs; and, with `web_questions`, the training questions of
  WebQuestions whose answers occur, somewhere, in a paragraph. None equals a
  held-out question, once both are normalized. `NQ-open.dev.jsonl` is never
  read: it contains most of QED.

  Raises:
    NoTextsError: There is no such folder.
  """
  _require(folder)
  held_out = {
    _normalize_question(row["question"]) for row in held_out_questions(folder)
  }
  questions = _qed_questions(folder)
  questions = questions[: int(_TRAIN_SHARE * len(questions))]
  questions += _xquad_questions(folder)
  if web_questions:
    questions += _answerable_web_questions(folder)
  return [
    row
    for row in questions
    if _normalize_question(row["question"]) not in held_out
  ]


def _qed_rows(folder: Path) -> Iterator[dict[str, Any]]:
  return _json_lines(folder / "qed" / "qed_dev_part.jsonl")


def _qed_questions(folder: Path) -> list[Question]:
  _require(folder)
  return [
    {
      "question": row["question_text"],
      "answer": [
        span["string"] for spans in row["original_nq_answers"] for span in spans
      ],
    }
    for row in _qed_rows(folder)
  ]


def _xquad_paragraphs(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields SQuAD's paragraphs with the titles of their articles."""
  file = folder / "xquad_en" / "xquad.en.json"
  for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
    title = article.get("title", "").replace("_", " ")
    for paragraph in article["paragraphs"]:
      yield title, paragraph


def _xquad_questions(folder: Path) -> Iterator[Question]:
  for _, paragraph in _xquad_paragraphs(folder):
    for row in paragraph["qas"]:
      answers = [answer["text"] for answer in row["answers"]]
      yield {
        "question": row["question"],
        "answer": list(dict.fromkeys(answers)),
      }


def _answerable_web_questions(folder: Path) -> Iterator[Question]:
  """Yields WebQuestions with those answers that a paragraph has unchanged.

  Its words must be there as words, too, which is soon known.
  """
  rows = [
    row
    for split in ("trainmodel", "val", "devtest")
    for row in json.loads(
      (folder / "webquestions" / f"{split}.json").read_text()
    )
  ]
  text = "\n".join(text for _, text in titled_paragraphs(folder))
  words = set(_WORD.findall(text))
  answers = {answer for row in rows for answer in row["answers"]}
  found = {
    a for a in answers if words.issuperset(_WORD.findall(a)) and a in text
  }
  for row in rows:
    if known := [answer for answer in row["answers"] if answer in found]:
      yield {"question": row["qText"], "answer": known}


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


def _normalize_question(text: str) -> str:
  """Returns a form that two editions of one question share.

  Case, accents, punctuation and white space do not count, so that "Who wrote
  'Emma'?" equals "who wrote emma". Compare questions by it before one set is
  held out from another.
  """
  text = unicodedata.normalize("NFKD", text).casefold()
  text = "".join(c for c in text if not unicodedata.combining(c))
  text = _APOSTROPHES.sub("", text)
  return " ".join(_NO_WORD.sub(" ", text).split())
