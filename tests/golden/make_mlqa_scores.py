"""Makes `tests/golden/mlqa_scores.npz`: what MLQA's released scoring says.

    python -m tests.golden.make_mlqa_scores --mlqa=/path/to/MLQA

`--mlqa` is a checkout of Facebook's repository `MLQA`, of which
`mlqa_evaluation_v1.py` is run. For each language the result has a digest of
each normalized answer of `answers_in`, and for each prediction whether it is an
exact match, and its F1. None of XQuAD's texts are in it.
"""

import json
from pathlib import Path

import numpy as np

from tests.golden import scored_rows

OUTPUT = Path(__file__).resolve().parent / "mlqa_scores.npz"
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
  rows = [scored_rows.Row([answer], False) for answer in answers]
  changed = zip(answers, scored_rows.predictions(rows), strict=True)
  hand_written = HAND_WRITTEN[language]
  return [
    *((text, answer) for answer, texts in changed for text in texts),
    *((one, other) for one in hand_written for other in hand_written),
  ]


def main() -> None:
  """Replaces the file."""
  scoring, data_dir = scored_rows.released_script(
    "--mlqa", "mlqa_evaluation_v1.py", (__doc__ or "").partition("\n")[0]
  )
  arrays = {}
  for language in HAND_WRITTEN:
    answers = answers_in(language, data_dir)
    pairs = pairs_in(language, data_dir)
    normalized = [scoring.normalize_answer(a, language) for a in answers]
    arrays[f"{language} digests"] = np.array(
      [scored_rows.digest([text]) for text in normalized], np.uint32
    )
    correct = [scoring.exact_match_score(*pair, language) for pair in pairs]
    arrays[f"{language} correct"] = np.packbits(correct)
    f1 = np.array([scoring.f1_score(*pair, language) for pair in pairs])
    arrays[f"{language} f1"] = f1.astype(np.float32)
    print(
      f"{language}: {len(answers)} answers, {len(pairs)} predictions, "
      f"exact match {np.mean(correct):.3f}, F1 {f1.mean():.3f}"
    )
  np.savez_compressed(OUTPUT, **arrays)


if __name__ == "__main__":
  main()
