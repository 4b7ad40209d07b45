"""Readers of five public data sets, which `benchmarks/README.md` lists.

Each raises FileNotFoundError if the folder of texts lacks a file.
"""

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
_APOSTROPHES = re.compile("['’]")
_NO_WORD = re.compile(r"[\W_]+")

# Default of --texts_dir, next to the clone.
TEXTS_DIR = PROJECT_DIR.parent / "shared" / "data"


def read_texts(folder: Path) -> dict[str, list[str]]:
  """Reads all texts of the folder, by data set, in the order of the files."""
  qed, wikitext, nq_open, web_questions, curated_trec = [], [], [], [], []
  for row in _qed(folder):
    qed += [row[f"{part}_text"] for part in ("title", "paragraph", "question")]
  for row in _wikitext(folder):
    wikitext += [row["title"], *row["paragraphs"]]
  for row in _json_lines(folder / "nq_open" / "NQ-open.dev.jsonl"):
    nq_open += [row["question"], *row["answer"]]
  for path in sorted(folder.glob("webquestions/*.json")):
    for row in json.loads(path.read_text(encoding="utf-8")):
      web_questions += [row["qText"], *row["answers"]]
  for path in sorted(folder.glob("curatedtrec/*.tsv")):
    for line in path.read_text(encoding="utf-8").splitlines():
      curated_trec.append(line.split("\t")[2])
  return {
    "qed": qed,
    "wikitext2": wikitext,
    "nq_open": nq_open,
    "webquestions": web_questions,
    "curatedtrec": curated_trec,
  }


def titled_paragraphs(folder: Path) -> list[tuple[str, str]]:
  """Reads titles and texts of the distinct paragraphs, a corpus of real text.

  They are those of QED, of WikiText-2 and of XQuAD.
  """
  paragraphs = [
    (row["title_text"], row["paragraph_text"]) for row in _qed(folder)
  ]
  for row in _wikitext(folder):
    paragraphs += [(row["title"], text) for text in row["paragraphs"]]
  for title, paragraph in _xquad(folder):
    paragraphs.append((title, paragraph["context"]))
  return list(dict.fromkeys(paragraphs))


def held_out_questions(folder: Path) -> list[Question]:
  """Reads the last fifth of QED's questions, which nothing is trained on."""
  return _qed_questions(folder)[1]


def training_questions(folder: Path) -> list[Question]:
  """Reads questions with answers in the corpus of `titled_paragraphs`.

  They are the first four fifths of QED's, and those of XQuAD, which were
  written for its paragraphs. None equals a held-out question, once both are
  normalized. `NQ-open.dev.jsonl` is never read: it contains most of QED.
  """
  questions, held_out = _qed_questions(folder)
  for _, paragraph in _xquad(folder):
    for row in paragraph["qas"]:
      answers = dict.fromkeys(answer["text"] for answer in row["answers"])
      questions.append({"question": row["question"], "answer": [*answers]})
  left_out = {_normalize_question(row["question"]) for row in held_out}
  return [
    row
    for row in questions
    if _normalize_question(row["question"]) not in left_out
  ]


def _qed(folder: Path) -> Iterator[dict[str, Any]]:
  return _json_lines(folder / "qed" / "qed_dev_part.jsonl")


def _qed_questions(folder: Path) -> tuple[list[Question], list[Question]]:
  """Returns the questions to train on, and those held out."""
  questions = [
    {
      "question": row["question_text"],
      "answer": [
        span["string"] for spans in row["original_nq_answers"] for span in spans
      ],
    }
    for row in _qed(folder)
  ]
  count = int(_TRAIN_SHARE * len(questions))
  return questions[:count], questions[count:]


def _wikitext(folder: Path) -> Iterator[dict[str, Any]]:
  return _json_lines(folder / "wikitext2" / "articles.jsonl")


def _xquad(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields SQuAD's paragraphs with the titles of their articles."""
  file = folder / "xquad_en" / "xquad.en.json"
  for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
    title = article.get("title", "").replace("_", " ")
    for paragraph in article["paragraphs"]:
      yield title, paragraph


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
  with path.open(encoding="utf-8") as lines:
    yield from map(json.loads, lines)


def _normalize_question(text: str) -> str:
  """Returns a form that two editions of one question share.

  Case, accents, punctuation and white space do not count, so that "Who wrote
  'Emma'?" equals "who wrote emma".
  """
  text = unicodedata.normalize("NFKD", text).casefold()
  text = "".join(c for c in text if not unicodedata.combining(c))
  return " ".join(_NO_WORD.sub(" ", _APOSTROPHES.sub("", text)).split())
