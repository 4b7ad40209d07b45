"""Makes `tests/golden/hf_realm`: tiny models and what transformers computes.

    .venv-peers/bin/python -m tests.golden.make_hf_realm

What each folder holds: `benchmarks/peers/realm.py`.
"""

import shutil
import tempfile
from pathlib import Path

from benchmarks.peers.realm import make_all
from tests.golden.vocabulary import write_vocabulary

OUTPUT_DIR = Path(__file__).resolve().parent / "hf_realm"


def main() -> None:
  """Replaces the folder."""
  shutil.rmtree(OUTPUT_DIR, ignore_errors=True)
  with tempfile.TemporaryDirectory() as folder:
    vocab = write_vocabulary(Path(folder))
    make_all(OUTPUT_DIR, vocab, size="tiny")


if __name__ == "__main__":
  main()
