"""Makes `tests/golden/hf_realm`: tiny models and what transformers computes.

    .venv-peers/bin/python -m tests.golden.make_hf_realm

What each folder holds: `benchmarks/peers/realm.py`.
"""

from pathlib import Path

from benchmarks.peers.realm import make_all
from tests.golden.vocabulary import replaced, write_vocabulary

OUTPUT_DIR = Path(__file__).resolve().parent / "hf_realm"


def main() -> None:
  """Replaces the folder."""
  with replaced(OUTPUT_DIR) as folder:
    make_all(OUTPUT_DIR, write_vocabulary(folder), size="tiny")


if __name__ == "__main__":
  main()
