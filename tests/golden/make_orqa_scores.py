"""Makes `tests/golden/orqa_scores.npz`: what Google's released scoring says.

    python -m tests.golden.make_orqa_scores --language=/path/to/language

`--language` is a checkout of Google's repository `language`, of which
`language/orqa/utils/eval_utils.py` is run; the questions are those of
`../shared/data`. For each row of each file, the result has a digest of its
normalized answers and one bit for each prediction of `scored_rows`: whether the
prediction is correct. None of the texts are in it.
"""

from pathlib import Path

import numpy as np

from tests.golden import scored_rows

OUTPUT = Path(__file__).resolve().parent / "orqa_scores.npz"


def main() -> None:
  """Replaces the file."""
  scoring, data_dir = scored_rows.released_script(
    "--language",
    "language/orqa/utils/eval_utils.py",
    (__doc__ or "").partition("\n")[0],
  )
  arrays = {}
  for name in scored_rows.FILES:
    rows = scored_rows.read(data_dir, name)
    arrays[f"{name} digests"] = np.array(
      [
        scored_rows.digest(
          [scoring.normalize_answer(answer) for answer in row.answers]
        )
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
