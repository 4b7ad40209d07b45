"""Sentence vectors as sentence-transformers computes them.

    .venv-peers/bin/python -m benchmarks.peers.sentence_vectors \
      --model=DIR --texts=texts.json --output=vectors.npz

A BERT's hidden states, their mean over the tokens that are not padding, length
one: what the `modules.json` of all-MiniLM-L6-v2 asks for. `vectors` [n, d] are
in the order of the texts, `token_ids` [n, l] what was read, padded with 0.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, BertModel

from benchmarks.peers.tensors import save_arrays

_TEXTS_PER_CALL = 32


def vectors(
  model_dir: Path, texts: list[str], *, max_length: int
) -> dict[str, np.ndarray]:
  """The output's arrays; a text is cut to `max_length` tokens."""
  tokenizer = AutoTokenizer.from_pretrained(model_dir)
  model = BertModel.from_pretrained(model_dir).eval()
  found = []
  token_ids = np.zeros((len(texts), max_length), np.int64)
  for start in range(0, len(texts), _TEXTS_PER_CALL):
    inputs = tokenizer(
      texts[start : start + _TEXTS_PER_CALL],
      padding=True,
      truncation=True,
      max_length=max_length,
      return_tensors="pt",
    )
    with torch.no_grad():
      hidden = model(**inputs).last_hidden_state
    is_token = inputs.attention_mask[..., None].float()
    mean = (hidden * is_token).sum(1) / is_token.sum(1).clamp(min=1e-9)
    found.append(torch.nn.functional.normalize(mean, dim=1).numpy())
    ids = inputs.input_ids.numpy()
    token_ids[start : start + len(ids), : ids.shape[1]] = ids
  return {"vectors": np.concatenate(found), "token_ids": token_ids}


def main() -> None:
  """Embeds texts."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--model", type=Path, required=True, help="a directory with weights"
  )
  parser.add_argument("--texts", type=Path, required=True)
  parser.add_argument("--output", type=Path, required=True)
  parser.add_argument("--max_length", type=int, default=256)
  given = parser.parse_args()
  texts = json.loads(given.texts.read_text(encoding="utf-8"))
  save_arrays(
    given.output, vectors(given.model, texts, max_length=given.max_length)
  )


if __name__ == "__main__":
  main()
