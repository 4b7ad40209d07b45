"""Reads six public data sets, which `benchmarks/README.md` lists.

All functions raise a FileNotFoundError if the folder of texts lacks a file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Languages of XQuAD that are read.
LANGUAGES = ("en", "es", "de", "ru", "ar", "hi", "th", "zh")
# Default of --texts_dir, next to the clone.
TEXTS_DIR = Path(__file__).resolve().parents[3] / "shared" / "data"


def read_texts(folder: Path) -> dict[str, list[str]]:
  """Reads all texts of the folder, by data set, in the order of the files."""
  texts: dict[str, list[str]] = {}
  for row in _qed(folder):
    parts = [row[f"{part}_text"] for part in ("title", "paragraph", "question")]
    texts.setdefault("qed", []).extend(parts)
  for row in _wikitext(folder):
    parts = [row["title"], *row["paragraphs"]]
    texts.setdefault("wikitext2", []).extend(parts)
  for row in _json_lines(folder / "nq_open" / "NQ-open.dev.jsonl"):
    parts = [row["question"], *row["answer"]]
    texts.setdefault("nq_open", []).extend(parts)
  for path in sorted(folder.glob("webquestions/*.json")):
    for row in json.loads(path.read_text(encoding="utf-8")):
      parts = [row["qText"], *row["answers"]]
      texts.setdefault("webquestions", []).extend(parts)
  for path in sorted(folder.glob("curatedtrec/*.tsv")):
    lines = path.read_text(encoding="utf-8").splitlines()
    parts = [line.split("\t")[2] for line in lines]
    texts.setdefault("curatedtrec", []).extend(parts)
  return texts


def titled_paragraphs(folder: Path) -> list[tuple[str, str]]:
  """Reads the titles and texts of distinct paragraphs, a corpus of real text.

  They are from QED, WikiText-2 and XQuAD.
  """
  paragraphs = [
    (row["title_text"], row["paragraph_text"]) for row in _qed(folder)
  ]
  for row in _wikitext(folder):
    paragraphs += [(row["title"], text) for text in row["paragraphs"]]
  for title, paragraph in xquad(folder):
    paragraphs.append((title, paragraph["context"]))
  return list(dict.fromkeys(paragraphs))


def judged_paragraphs(
  folder: Path,
) -> tuple[list[tuple[str, str]], list[tuple[str, int, list[str]]]]:
  """Reads `titled_paragraphs`, and the questions about some of them.

  Returns:
    The paragraphs; and for each question of QED and XQuAD, its text, the number
    of its paragraph, and the answers that are substrings of the paragraph.
  """
  paragraphs = titled_paragraphs(folder)
  numbers = {one: number for number, one in enumerate(paragraphs)}
  judged = [
    (row["question_text"], (row["title_text"], row["paragraph_text"]), [])
    for row in _qed(folder)
  ]
  for title, paragraph in xquad(folder):
    for row in paragraph["qas"]:
      answers = [answer["text"] for answer in row["answers"]]
      judged.append((row["question"], (title, paragraph["context"]), answers))
  return paragraphs, [(q, numbers[one], a) for q, one, a in judged]


def questions(folder: Path) -> list[str]:
  """Reads the questions of QED and XQuAD about `titled_paragraphs`."""
  texts = [row["question_text"] for row in _qed(folder)]
  for _, paragraph in xquad(folder):
    texts += [row["question"] for row in paragraph["qas"]]
  return texts


def _qed(folder: Path) -> Iterator[dict[str, Any]]:
  return _json_lines(folder / "qed" / "qed_dev_part.jsonl")


def _wikitext(folder: Path) -> Iterator[dict[str, Any]]:
  return _json_lines(folder / "wikitext2" / "articles.jsonl")


def xquad(
  folder: Path, language: str = "en"
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields XQuAD's paragraphs with the titles of their articles."""
  source = "xquad_en" if language == "en" else "xquad"
  file = folder / source / f"xquad.{language}.json"
  for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
    title = article.get("title", "").replace("_", " ")
    for paragraph in article["paragraphs"]:
      yield title, paragraph


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
  with path.open(encoding="utf-8") as lines:
    yield from map(json.loads, lines)
