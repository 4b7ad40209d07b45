"""Makes `tests/golden/orqa_scores.npz`: what Google's released scoring says.

    python -m tests.golden.make_orqa_scores --language=/path/to/language

`--language` is a checkout of Google's repository `language`, of which
`language/orqa/utils/eval_utils.py` is run; the questions are those of
`../shared/data`. For each row of each file, the result has a digest of its
normalized answers and one bit for each prediction of `scored_rows`: whether the
prediction is correct. None of the texts are in it.
"""

import argparse
import importlib.util
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np

from tests.golden import scored_rows

OUTPUT = Path(__file__).resolve().parent / "orqa_scores.npz"
_DATA_DIR = Path(__file__).resolve().parents[3] / "shared" / "data"
_SCORING = "language/orqa/utils/eval_utils.py"


def digest(normalized: list[str]) -> int:
  """A digest of normalized texts, of 32 bits."""
  return zlib.crc32("\n".join(normalized).encode())


def _scoring(checkout: Path) -> ModuleType:
  spec = importlib.util.spec_from_file_location(
    "eval_utils", checkout / _SCORING
  )
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def main() -> None:
  """Replaces the file."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--language", type=Path, required=True)
  parser.add_argument("--data_dir", type=Path, default=_DATA_DIR)
  given = parser.parse_args()
  scoring = _scoring(given.language)
  arrays = {}
  for name in scored_rows.FILES:
    rows = scored_rows.read(given.data_dir, name)
    arrays[f"{name} digests"] = np.array(
      [
        digest([scoring.normalize_answer(answer) for answer in row.answers])
        for row in rows
      ],
      np.uint32,
    )
    correct = [
      [scoring.is_correct(row.answers, text, row.is_regex) for text in texts]
      for row, texts in zip(rows, scored_rows.predictions(rows), strict=True)
    ]
    arrays[f"{name} correct"] = np.packbits(np.array(correct), axis=1)
    print(f"{name}: {len(rows)} rows, {np.mean(correct):.3f} correct")
  np.savez_compressed(OUTPUT, **arrays)


if __name__ == "__main__":
  main()
