"""Makes `orqa_scores.npz` and `mlqa_scores.npz`: what released scoring says.

    python -m tests.golden.make_scores --language=/path/to/language
    python -m tests.golden.make_scores --mlqa=/path/to/MLQA

The first is a checkout of Google's repository `language`, of which
`language/orqa/utils/eval_utils.py` is run on the questions of
`../shared/data` and on the extracts of `tests/golden/questions`, and the second
one of Facebook's `MLQA`, of which `mlqa_evaluation_v1.py` is run on answers of
XQuAD. Results say for each prediction whether it is correct; MLQA's have its F1
and a digest of each normalized answer, too.
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

EXTRACTS_DIR = Path(__file__).resolve().with_name("questions")
_DATA_DIR = Path(__file__).resolve().parents[3] / "shared" / "data"
ORQA, MLQA = (
  EXTRACTS_DIR.with_name(f"{n}_scores.npz") for n in ("orqa", "mlqa")
)

# Their answers are strings, and the TSV's are regular expressions.
EXTRACTS = (
  "nq_open/NQ-open.dev.jsonl",
  "webquestions/test.json",
  "curatedtrec/curated-test.tsv",
)
FILES = (
  *EXTRACTS,
  "webquestions/trainmodel.json",
  "webquestions/val.json",
  "webquestions/devtest.json",
  "curatedtrec/curated-train.tsv",
  "curatedtrec/large2470-train.tsv",
  "curatedtrec/large2470-test.tsv",
)


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


def answers_in(language: str) -> list[str]:
  """The answers of a language: some of XQuAD's, then those written here."""
  xquad = json.loads((EXTRACTS_DIR / "xquad.json").read_text("utf-8"))
  return [*xquad.get(language, []), *HAND_WRITTEN[language]]


def digest(text: str) -> int:
  """A digest of a normalized answer, of 32 bits."""
  return zlib.crc32(text.encode())


def pairs_in(language: str) -> list[tuple[str, str]]:
  """Predictions, each with its reference."""
  answers = answers_in(language)
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
  for folder, names in ((EXTRACTS_DIR, EXTRACTS), (_DATA_DIR, FILES)):
    for name in names:
      rows = read(folder, name)
      correct = [
        [scoring.is_correct(row.answers, text, row.is_regex) for text in texts]
        for row, texts in zip(rows, predictions(rows), strict=True)
      ]
      arrays[f"{folder.name}/{name}"] = np.packbits(correct, axis=1)
  return arrays


def _mlqa_scores(scoring: SimpleNamespace) -> dict[str, np.ndarray]:
  arrays = {}
  for language in HAND_WRITTEN:
    answers, pairs = answers_in(language), pairs_in(language)
    digests = [digest(scoring.normalize_answer(a, language)) for a in answers]
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
  arguments = parser.parse_args()
  for root, script, scores, output in (
    (
      arguments.language,
      "language/orqa/utils/eval_utils.py",
      _orqa_scores,
      ORQA,
    ),
    (arguments.mlqa, "mlqa_evaluation_v1.py", _mlqa_scores, MLQA),
  ):
    if root:
      scoring = SimpleNamespace(**runpy.run_path(str(root / script)))
      np.savez_compressed(output, **scores(scoring))


if __name__ == "__main__":
  main()
