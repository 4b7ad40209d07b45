"""Embeds blocks with Hugging Face's BertModel, and measures the time.

    .venv-peers/bin/python -m benchmarks.peers.hf_embedder \
      --model=DIR --blocks=blocks.npz --output=vectors.npz

The blocks are embedded in the usual way: in batches in the order of the corpus,
each padded to its longest block. The input is `token_ids` [n, l], padded with
0, so nothing is tokenized. The time does not include loading the model. The
output is one line of JSON.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel

from benchmarks.peers.tensors import save_arrays


def load(given: argparse.Namespace) -> BertModel:
  """Loads a model, or makes one with random weights."""
  if given.model:
    return BertModel.from_pretrained(given.model).eval()
  torch.manual_seed(0)
  return BertModel(BertConfig(**json.loads(given.sizes))).eval()


def vectors(
  model: BertModel, token_ids: np.ndarray, *, batch: int, pooling: str
) -> np.ndarray:
  """Embeds blocks, pooled by the mean of the tokens or by [CLS]."""
  lengths = np.count_nonzero(token_ids, axis=1)
  found = []
  for start in range(0, len(token_ids), batch):
    rows = slice(start, start + batch)
    inputs = torch.from_numpy(token_ids[rows, : lengths[rows].max()])
    is_token = inputs != 0
    with torch.inference_mode():
      hidden = model(inputs, attention_mask=is_token.long()).last_hidden_state
      if pooling == "cls":
        pooled = hidden[:, 0]
      else:
        weights = is_token[..., None].float()
        pooled = (hidden * weights).sum(1) / weights.sum(1)
    found.append(pooled.numpy())
  return np.concatenate(found)


def main() -> None:
  """Embeds the blocks and prints the time."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--model", type=Path, help="folder of the weights")
  parser.add_argument("--sizes", help="BertConfig of a random model, as JSON")
  parser.add_argument(
    "--blocks", type=Path, required=True, help="file of token_ids"
  )
  parser.add_argument(
    "--output", type=Path, required=True, help="file for vectors"
  )
  parser.add_argument(
    "--pooling", choices=["mean", "cls"], default="mean", help="pooling"
  )
  parser.add_argument("--batch", type=int, default=32, help="blocks in a batch")
  parser.add_argument("--threads", type=int, default=2, help="threads of torch")
  given = parser.parse_args()
  torch.set_num_threads(given.threads)
  model = load(given)
  with np.load(given.blocks, allow_pickle=False) as arrays:
    token_ids = arrays["token_ids"].astype(np.int64)
  settings = {"batch": given.batch, "pooling": given.pooling}
  # The first call allocates.
  vectors(model, token_ids[: given.batch], **settings)
  start = time.perf_counter()
  found = vectors(model, token_ids, **settings)
  seconds = time.perf_counter() - start
  save_arrays(given.output, {"vectors": found})
  print(json.dumps({"seconds": seconds, "torch": torch.__version__}))


if __name__ == "__main__":
  main()
