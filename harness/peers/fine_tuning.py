"""Fine-tunes a retriever with sentence-transformers, on pairs of texts.

    .venv-peers/bin/python -m harness.peers.fine_tuning --model=MODEL \
      --input=PAIRS.json --output=FOLDER --steps=80 --batch=32

This calls the library's `fit`, with its ranking loss, AdamW, a linear schedule
and batches without duplicates. --dtype=bfloat16 computes matrix products in
that type, by torch's autocast. The model is written to --output. The command
prints a line of JSON with the examples per second, from the median time of
steps after the first.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import InputExample, SentenceTransformer
from sentence_transformers.datasets import NoDuplicatesDataLoader
from sentence_transformers.losses import MultipleNegativesRankingLoss

from harness.peer_processes import peak_memory


class _TimedLoss(MultipleNegativesRankingLoss):
  """The loss, which also records the start time of each step."""

  def __init__(self, model: SentenceTransformer):
    super().__init__(model)
    self.starts: list[float] = []

  def forward(self, *arguments: Any) -> torch.Tensor:
    self.starts.append(time.perf_counter())
    return super().forward(*arguments)


def main() -> None:
  """Trains a model, and writes it."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--model", required=True)
  parser.add_argument("--input", type=Path, required=True)
  parser.add_argument("--output", type=Path, required=True)
  parser.add_argument("--steps", type=int, required=True)
  parser.add_argument("--batch", type=int, required=True)
  parser.add_argument("--warmup", type=int, default=0)
  parser.add_argument("--rate", type=float, default=2e-5)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--dtype", default="float32")
  options = parser.parse_args()
  torch.set_num_threads(2)
  torch.manual_seed(options.seed)
  model = SentenceTransformer(options.model, device="cpu")
  pairs = json.loads(options.input.read_text(encoding="utf-8"))
  examples = [InputExample(texts=pair) for pair in pairs]
  loader = NoDuplicatesDataLoader(examples, batch_size=options.batch)
  loss = _TimedLoss(model)
  with torch.autocast("cpu", torch.bfloat16, options.dtype == "bfloat16"):
    model.old_fit(
      [(loader, loss)],
      epochs=1,
      steps_per_epoch=options.steps,
      warmup_steps=options.warmup,
      optimizer_params={"lr": options.rate},
      weight_decay=0.01,
      max_grad_norm=1.0,
      show_progress_bar=False,
    )
  model.save(str(options.output), safe_serialization=True)
  steps = [b - a for a, b in zip(loss.starts, loss.starts[1:], strict=False)]
  results = {
    "examples_per_second": options.batch / statistics.median(steps),
    "peak_memory_gb": peak_memory() / 1e9,
  }
  print(json.dumps(results))


if __name__ == "__main__":
  main()
