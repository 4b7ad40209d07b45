"""Makes `tests/golden/hf_bert`: tiny BERTs and what transformers computes.

    .venv-peers/bin/python -m tests.golden.make_hf_bert

What each folder holds: `benchmarks/peers/hf_bert_values.py`.
"""

import shutil
import tempfile
from pathlib import Path

from benchmarks.peers.hf_bert_values import make_all
from tests.golden.vocabulary import write_vocabulary

OUTPUT_DIR = Path(__file__).resolve().parent / "hf_bert"
_MODEL = {
  "hidden_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 48,
  "max_position_embeddings": 64,
}


def main() -> None:
  """Replaces the folder."""
  shutil.rmtree(OUTPUT_DIR, ignore_errors=True)
  with tempfile.TemporaryDirectory() as folder:
    vocab = write_vocabulary(Path(folder))
    make_all(OUTPUT_DIR, vocab, model=_MODEL)


if __name__ == "__main__":
  main()
