"""Makes `tests/golden/sentence_transformers`: what the library computes.

    .venv/bin/python -m tests.golden.make_sentence_transformers

Each folder is a tiny retriever as this project exports it. The `query.npz` and
`block.npz` in it are what sentence-transformers, in the environment of
`make peers`, makes of it: see `benchmarks/peers/sentence.py`.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import peer_processes
from tests.weights import sentence_models

OUTPUT_DIR = Path(__file__).resolve().parent / "sentence_transformers"


def main() -> None:
  """Replaces the folder."""
  shutil.rmtree(OUTPUT_DIR, ignore_errors=True)
  for name in sentence_models.RETRIEVERS:
    directory = OUTPUT_DIR / name
    sentence_models.export(name, directory)
    found = {}
    for side, texts in sentence_models.texts(name).items():
      with tempfile.TemporaryDirectory() as folder:
        found[side] = peer_processes.run_on_texts(
          "vectors", texts, Path(folder), model=directory
        )
    for side, arrays in found.items():
      np.savez(directory / f"{side}.npz", **arrays)


if __name__ == "__main__":
  main()
