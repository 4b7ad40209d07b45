"""Computes sentence vectors as sentence-transformers does.

    .venv-peers/bin/python -m benchmarks.peers.sentence_vectors \
      --model=DIR --texts=texts.json --output=vectors.npz

A vector is the mean of BERT's hidden states over the tokens that are not
padding, scaled to length one, as the `modules.json` of all-MiniLM-L6-v2
specifies. The output has `vectors` [n, d] in the order of the texts, and the
input `token_ids` [n, l], padded with 0.
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
  """Returns the output arrays; texts are truncated to `max_length` tokens."""
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
  """Embeds the texts and writes the vectors."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--model", type=Path, required=True, help="folder of the weights"
  )
  parser.add_argument("--texts", type=Path, required=True, help="list of texts")
  parser.add_argument(
    "--output", type=Path, required=True, help="file for vectors"
  )
  parser.add_argument(
    "--max_length", type=int, default=256, help="tokens of a text"
  )
  given = parser.parse_args()
  texts = json.loads(given.texts.read_text(encoding="utf-8"))
  save_arrays(
    given.output, vectors(given.model, texts, max_length=given.max_length)
  )


if __name__ == "__main__":
  main()
