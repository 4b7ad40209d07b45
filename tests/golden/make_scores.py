"""Makes `orqa_scores.npz` and `mlqa_scores.npz`: what released scoring says.

    python -m tests.golden.make_scores --language=/path/to/language
    python -m tests.golden.make_scores --mlqa=/path/to/MLQA

The first is a checkout of Google's repository `language`, of which
`language/orqa/utils/eval_utils.py` is run on the questions of
`../shared/data`, and the second one of Facebook's `MLQA`, of which
`mlqa_evaluation_v1.py` is run on answers of XQuAD. Results have a digest of
each row's normalized answers and, for each prediction, whether it is correct;
MLQA's its F1, too. None of the texts are in them.
"""

import argparse
import json
import re
import runpy
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

_DATA_DIR = Path(__file__).resolve().parents[3] / "shared" / "data"
ORQA, MLQA = (
  Path(__file__).resolve().with_name(f"{name}_scores.npz")
  for name in ("orqa", "mlqa")
)

# Their answers are strings, and the TSV's are regular expressions.
FILES = (
  "nq_open/NQ-open.dev.jsonl",
  "webquestions/trainmodel.json",
  "webquestions/val.json",
  "webquestions/devtest.json",
  "webquestions/test.json",
  "curatedtrec/curated-train.tsv",
  "curatedtrec/curated-test.tsv",
  "curatedtrec/large2470-train.tsv",
  "curatedtrec/large2470-test.tsv",
)


def digest(normalized: list[str]) -> int:
  """A digest of normalized texts, of 32 bits."""
  return zlib.crc32("\n".join(normalized).encode())


class Row(NamedTuple):
  """The answers of one question, and whether they are patterns."""

  answers: list[str]
  is_regex: bool


def read(data_dir: Path, name: str) -> list[Row]:
  """The rows of a file, in its order."""
  text = (data_dir / name).read_bytes().decode()
  if name.endswith(".json"):
    return [Row(row["answers"], False) for row in json.loads(text)]
  lines = filter(None, text.split("\n"))
  if name.endswith(".tsv"):
    return [Row([line.split("\t")[3]], True) for line in lines]
  return [Row(json.loads(line)["answer"], False) for line in lines]


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


# --- MLQA ---------------------------------------------------------------------

# Every fourth of XQuAD's answers, which has no Vietnamese here.
XQUAD = ("ar", "de", "es", "hi", "zh")
_STEP = 4
# Texts for what a language's rules are about, each a prediction for the others.
HAND_WRITTEN = {
  "ar": (
    *("القاهرة", "قاهرة", "في القاهرة؟", "المال", "مال ال", "ال"),
    *("«القاهرة»، 1972", "والقاهرة"),
  ),
  "de": (
    *("Die", "der", "das Haus", "ein Haus des Herrn", "Haus Herrn"),
    *("„Straße“", "Strasse", "STRASSE", "dem Ende—nah", "Übung", "U\u0308bung"),
  ),
  "es": (
    *("La Casa", "casa", "¿una casa?", "unos 20 000 €", "20000 €", "el"),
    *("lasaña", "«El Cid»", "cid", "Ñ $5+5=10"),
  ),
  "hi": (
    *("दिल्ली", "दिल्ली।", "नई दिल्ली", "दि\u200dल्ली", "१९७२", "1972"),
    *("॥ दिल्ली॥", "The Delhi"),
  ),
  "vi": (
    *("của Hà Nội", "Hà Nội", "hà  nội.", "những cái nhà", "nhà", "là"),
    *("chiếc nón lá", "Ha\u0300 Nô\u0323i", "làng", "“Nhà” của tôi"),
  ),
  "zh": (
    *("北京。", "北京", "北 京", "东京", "2008年", "2008 年", "NBA 全明星"),
    *("《NBA全明星》", "龦㐀𠀀", "the 北京", "。", "１９７２年", "1972年"),
  ),
}


def answers_in(language: str, data_dir: Path) -> list[str]:
  """The answers of a language: some of XQuAD's, then those written here."""
  answers: list[str] = []
  if language in XQUAD:
    path = data_dir / "xquad" / f"xquad.{language}.json"
    for article in json.loads(path.read_text("utf-8"))["data"]:
      for paragraph in article["paragraphs"]:
        answers += [row["answers"][0]["text"] for row in paragraph["qas"]]
  return [*answers[::_STEP], *HAND_WRITTEN[language]]


def pairs_in(language: str, data_dir: Path) -> list[tuple[str, str]]:
  """Predictions, each with its reference."""
  answers = answers_in(language, data_dir)
  rows = [Row([answer], False) for answer in answers]
  changed = zip(answers, predictions(rows), strict=True)
  hand_written = HAND_WRITTEN[language]
  return [
    *((text, answer) for answer, texts in changed for text in texts),
    *((one, other) for one in hand_written for other in hand_written),
  ]


# --- Released scoring ---------------------------------------------------------


def _orqa_scores(scoring: SimpleNamespace) -> dict[str, np.ndarray]:
  arrays = {}
  for name in FILES:
    rows = read(_DATA_DIR, name)
    normalized = (map(scoring.normalize_answer, row.answers) for row in rows)
    digests = [digest([*answers]) for answers in normalized]
    arrays[f"{name} digests"] = np.array(digests, np.uint32)
    correct = [
      [scoring.is_correct(row.answers, text, row.is_regex) for text in texts]
      for row, texts in zip(rows, predictions(rows), strict=True)
    ]
    arrays[f"{name} correct"] = np.packbits(np.array(correct), axis=1)
  return arrays


def _mlqa_scores(scoring: SimpleNamespace) -> dict[str, np.ndarray]:
  arrays = {}
  for language in HAND_WRITTEN:
    answers = answers_in(language, _DATA_DIR)
    pairs = pairs_in(language, _DATA_DIR)
    normalized = [scoring.normalize_answer(a, language) for a in answers]
    digests = [digest([text]) for text in normalized]
    arrays[f"{language} digests"] = np.array(digests, np.uint32)
    correct = [scoring.exact_match_score(*pair, language) for pair in pairs]
    arrays[f"{language} correct"] = np.packbits(correct)
    f1 = np.array([scoring.f1_score(*pair, language) for pair in pairs])
    arrays[f"{language} f1"] = f1.astype(np.float32)
  return arrays


def main() -> None:
  """Replaces the files of the checkouts that are given."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--language", type=Path)
  parser.add_argument("--mlqa", type=Path)
  given = parser.parse_args()
  for root, script, scores, output in (
    (given.language, "language/orqa/utils/eval_utils.py", _orqa_scores, ORQA),
    (given.mlqa, "mlqa_evaluation_v1.py", _mlqa_scores, MLQA),
  ):
    if root:
      scoring = SimpleNamespace(**runpy.run_path(str(root / script)))
      np.savez_compressed(output, **scores(scoring))


if __name__ == "__main__":
  main()
