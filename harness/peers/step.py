"""Measures time and memory of Hugging Face REALM's pre-training step.

    .venv-peers/bin/python -m harness.peers.step --sizes=JSON --steps=3

It runs in the environment of `make peers`, as a process of its own, so that its
memory is measured alone, and prints one line of JSON. The step is that of
`realm_jax.training.step`: embed the queries and their candidates, read each
query with each candidate, marginalize, differentiate, and update all
parameters. Hugging Face scores words at every position of the joint input, and
treats the null block like any other candidate. No input has padding.
"""

import argparse
import json
import resource
import statistics
import time

import numpy as np
import torch
from transformers import RealmConfig
from transformers.models.realm.modeling_realm import (
  RealmKnowledgeAugEncoder,
  RealmScorer,
)

# Rows, inner size and columns of products: square ones, and those of a step.
_PRODUCTS = ((2048,) * 3, (4096,) * 3, (12288, 256, 1024), (12288, 1024, 256))
_FIRST_WORD = 999  # The ids below are no words in BERT's vocabulary.


def matmul_gflops_per_second() -> float:
  """Measures torch's best rate of a float32 matrix product."""
  best = 0.0
  for rows, inner, columns in _PRODUCTS:
    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    torch.matmul(left, right)
    for _ in range(6):
      start = time.perf_counter()
      torch.matmul(left, right)
      seconds = time.perf_counter() - start
      best = max(best, 2e-9 * rows * inner * columns / seconds)
  return best


def step_seconds(given: argparse.Namespace, steps: int) -> list[float]:
  """Returns the time of each step except the first."""
  config = RealmConfig(
    vocab_size=given.vocab,
    hidden_size=given.hidden,
    num_hidden_layers=given.layers,
    num_attention_heads=given.heads,
    intermediate_size=given.inner,
    num_candidates=given.candidates,
    hidden_dropout_prob=given.dropout,
    attention_probs_dropout_prob=given.dropout,
  )
  torch.manual_seed(0)
  scorer = RealmScorer(config).train()
  encoder = RealmKnowledgeAugEncoder(config).train()
  optimizer = torch.optim.AdamW(
    [*scorer.parameters(), *encoder.parameters()], lr=3e-5
  )
  rng = np.random.default_rng(0)

  def words(*shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.integers(_FIRST_WORD, given.vocab, shape))

  query = words(given.batch, given.query)
  candidates = words(given.batch, given.candidates, given.block)
  joint = words(given.batch, given.candidates, given.joint)
  positions = np.linspace(1, given.query - 2, given.masks).astype(int)
  is_mask = torch.zeros(given.batch, given.joint)
  is_mask[:, positions] = 1
  labels = torch.full((given.batch, given.joint), -100)
  labels[:, positions] = words(given.batch, given.masks)

  times = []
  for _ in range(steps + 1):
    start = time.perf_counter()
    optimizer.zero_grad()
    relevance = scorer(
      input_ids=query,
      attention_mask=torch.ones_like(query),
      candidate_input_ids=candidates,
      candidate_attention_mask=torch.ones_like(candidates),
    ).relevance_score
    loss = encoder(
      input_ids=joint,
      attention_mask=torch.ones_like(joint),
      relevance_score=relevance,
      labels=labels,
      mlm_mask=is_mask,
    ).loss
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - start)
  return times[1:]


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--sizes", required=True)
  parser.add_argument("--steps", type=int, required=True)
  given = parser.parse_args()
  torch.set_num_threads(2)
  sizes = argparse.Namespace(**json.loads(given.sizes))
  seconds = step_seconds(sizes, given.steps)
  # Before the matrix products, which use more memory.
  peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  median = statistics.median(seconds)
  result = {
    "seconds_per_step": median,
    "examples_per_second": sizes.batch / median,
    "peak_memory_gb": peak / 1e9,
    "matmul_gflops_per_second": matmul_gflops_per_second(),
  }
  print(json.dumps(result))


if __name__ == "__main__":
  main()
