"""Rows of real question files, and predictions to score on them.

Released scoring and ours are given the same: see `make_orqa_scores.py` and
`make_mlqa_scores.py`.
"""

import argparse
import importlib.util
import json
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

_DATA_DIR = Path(__file__).resolve().parents[3] / "shared" / "data"

# Their answers are strings, and the TSV's are regular expressions.
NQ_OPEN = "nq_open/NQ-open.dev.jsonl"
WEB_QUESTIONS = tuple(
  f"webquestions/{name}.json"
  for name in ("trainmodel", "val", "devtest", "test")
)
CURATED_TREC = tuple(
  f"curatedtrec/{name}.tsv"
  for name in (
    "curated-train",
    "curated-test",
    "large2470-train",
    "large2470-test",
  )
)
FILES = (NQ_OPEN, *WEB_QUESTIONS, *CURATED_TREC)


def released_script(
  flag: str, path: str, description: str
) -> tuple[ModuleType, Path]:
  """The script at a path in the checkout of a flag, and the data's folder."""
  parser = argparse.ArgumentParser(description=description)
  parser.add_argument(flag, dest="checkout", type=Path, required=True)
  parser.add_argument("--data_dir", type=Path, default=_DATA_DIR)
  given = parser.parse_args()
  file = given.checkout / path
  spec = importlib.util.spec_from_file_location(file.stem, file)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module, given.data_dir


def digest(normalized: list[str]) -> int:
  """A digest of normalized texts, of 32 bits."""
  return zlib.crc32("\n".join(normalized).encode())


class Row(NamedTuple):
  """The answers of one question, and whether they are patterns."""

  answers: list[str]
  is_regex: bool


def read(data_dir: Path, name: str) -> list[Row]:
  """The rows of a file, in its order."""
  path = data_dir / name
  if path.suffix == ".tsv":
    lines = path.read_bytes().decode().split("\n")
    return [Row([line.split("\t")[3]], True) for line in lines if line]
  if path.suffix == ".json":
    return [Row(row["answers"], False) for row in json.loads(path.read_bytes())]
  lines = path.read_bytes().decode().split("\n")
  return [Row(json.loads(line)["answer"], False) for line in lines if line]


def _without_accents(text: str) -> str:
  decomposed = unicodedata.normalize("NFD", text)
  return "".join(c for c in decomposed if not unicodedata.combining(c))


_CHANGES: tuple[Callable[[str], str], ...] = (
  lambda text: text,
  str.upper,
  str.title,
  lambda text: unicodedata.normalize("NFD", text),
  lambda text: unicodedata.normalize("NFKC", text),
  _without_accents,
  lambda text: f"The {text}.",
  lambda text: f"a  {text}\u00a0an",
  lambda text: f"“{text}”",
  lambda text: text.replace("-", " "),
  lambda text: text.replace(" ", "-"),
  lambda text: " ".join(text.split()[1:]),
  lambda text: " ".join(text.split()[:-1]),
  lambda text: f"about {text}",
  lambda text: f"\n{text}\n",
)
# A text that a pattern may match: its first alternative without its signs.
_SIGNS = (
  (r"\\s[*+?]?", " "),
  (r"\\d", "1"),
  (r"\.[*+]\??", " "),
  (r"[\[\]()^$?*+]", ""),
  (r"\\(.)", r"\1"),
)


def _plain(pattern: str) -> str:
  text = pattern.partition("|")[0]
  for sign, plain in _SIGNS:
    text = re.sub(sign, plain, text)
  return text


def predictions(rows: list[Row]) -> Iterator[tuple[str, ...]]:
  """Predictions for each row: its last answer, changed; and the next row's."""
  for row, following in zip(rows, [*rows[1:], rows[0]], strict=True):
    texts = [
      _plain(one.answers[-1]) if one.is_regex else one.answers[-1]
      for one in (row, following)
    ]
    changed = (change(texts[0]) for change in _CHANGES)
    yield (*changed, texts[1])
