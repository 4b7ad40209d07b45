"""Tokenizes texts with Hugging Face's BERT tokenizers.

    .venv-peers/bin/python -m benchmarks.peers.hf_tokens \
      --vocab=vocab.txt --texts=texts.json --output=tokens.npz

`texts.json` is a list of texts. For each of `BertTokenizerFast` (`fast`) and
`BertTokenizer` (`slow`), the output has the concatenated `ids` of all texts,
and `offsets`: those of text i are `ids[offsets[i]:offsets[i + 1]]`, without
special tokens.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from transformers import BertTokenizer, BertTokenizerFast

from benchmarks.peers.tensors import save_arrays

_TOKENIZERS = {"fast": BertTokenizerFast, "slow": BertTokenizer}


def main() -> None:
  """Tokenizes the texts and writes the ids."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--vocab", required=True, help="vocabulary file")
  parser.add_argument("--texts", type=Path, required=True, help="list of texts")
  parser.add_argument(
    "--output", type=Path, required=True, help="file for the ids"
  )
  given = parser.parse_args()
  texts = json.loads(given.texts.read_text(encoding="utf-8"))
  arrays = {}
  for name, tokenizer in _TOKENIZERS.items():
    # Without a limit, because each longer text would log a warning.
    made = tokenizer(vocab_file=given.vocab, model_max_length=10**9)
    rows = made(texts, add_special_tokens=False).input_ids
    arrays[f"{name}/ids"] = np.array([i for row in rows for i in row], np.int32)
    arrays[f"{name}/offsets"] = np.cumsum([0, *map(len, rows)])
  save_arrays(given.output, arrays)


if __name__ == "__main__":
  main()
