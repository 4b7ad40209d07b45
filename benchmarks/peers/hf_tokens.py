"""What Hugging Face's BERT tokenizers make of texts.

    .venv-peers/bin/python -m benchmarks.peers.hf_tokens \
      --vocab=vocab.txt --texts=texts.json --output=tokens.npz

`texts.json` is a list of texts. For each of `BertTokenizerFast` (`fast`) and
`BertTokenizer` (`slow`) the file has `ids`, of all texts end to end, and
`offsets`: text i owns `ids[offsets[i]:offsets[i + 1]]`, without specials.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from transformers import BertTokenizer, BertTokenizerFast

from benchmarks.peers.tensors import save_arrays

_TOKENIZERS = {"fast": BertTokenizerFast, "slow": BertTokenizer}


def main() -> None:
  """Tokenizes."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--vocab", required=True)
  parser.add_argument("--texts", type=Path, required=True)
  parser.add_argument("--output", type=Path, required=True)
  given = parser.parse_args()
  texts = json.loads(given.texts.read_text(encoding="utf-8"))
  arrays = {}
  for name, tokenizer in _TOKENIZERS.items():
    # No limit: otherwise each long text is warned of.
    made = tokenizer(vocab_file=given.vocab, model_max_length=10**9)
    rows = made(texts, add_special_tokens=False).input_ids
    arrays[f"{name}/ids"] = np.array([i for row in rows for i in row], np.int32)
    arrays[f"{name}/offsets"] = np.cumsum([0, *map(len, rows)])
  save_arrays(given.output, arrays)


if __name__ == "__main__":
  main()
