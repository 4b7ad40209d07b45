"""Measures time and memory of REALM's pre-training step in torch.

    .venv-peers/bin/python -m harness.peers.step tuned --sizes=JSON --steps=3

It runs in the environment of `make peers`, in a separate process, so that only
its own memory is measured, and prints one line of JSON. The step is the same as
in `realm_jax.training.step`: embed the queries and their candidates, read each
query with each candidate, marginalize, differentiate, and update all
parameters. No input has padding. There are two versions, with the same modules:

- hf: as published by Hugging Face. Words are scored at every position of the
  joint input, and the null block is as long as any other candidate.
- tuned: like a good engineer's code. Words are scored at the masks, the null
  block has three tokens and is embedded once, and GELU and AdamW are fused.

Both use Hugging Face's attention, because torch's kernels for CPUs do not
support dropout.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from transformers import RealmConfig
from transformers.models.realm.modeling_realm import (
  RealmKnowledgeAugEncoder,
  RealmScorer,
)

from harness.peer_processes import peak_memory

# Rows, inner size and columns of matrix products: square ones, and a step's.
_PRODUCTS = ((2048,) * 3, (4096,) * 3, (12288, 256, 1024), (12288, 1024, 256))
_FIRST_WORD = 999  # The ids below are no words in BERT's vocabulary.
# Arguments of one of the encoders.
Inputs = Mapping[str, torch.Tensor]


def matmul_gflops_per_second(dtype: torch.dtype) -> float:
  """Measures torch's best rate for matrix products."""
  best = 0.0
  for rows, inner, columns in _PRODUCTS:
    left = torch.randn(rows, inner).to(dtype)
    right = torch.randn(inner, columns).to(dtype)
    torch.matmul(left, right)
    for _ in range(6):
      start = time.perf_counter()
      torch.matmul(left, right)
      seconds = time.perf_counter() - start
      best = max(best, 2e-9 * rows * inner * columns / seconds)
  return best


def tuned_loss(
  scorer: RealmScorer,
  encoder: RealmKnowledgeAugEncoder,
  *,
  query: Inputs,
  blocks: Inputs,
  null: Inputs,
  joint: Inputs,
  joint_null: Inputs,
  positions: torch.Tensor,
  targets: torch.Tensor,
  weights: torch.Tensor,
) -> torch.Tensor:
  """Returns REALM's loss, with words scored only at the masks.

  Args:
    scorer: Embedder of queries and blocks.
    encoder: Reader.
    query: Queries, b of them.
    blocks: Blocks, b · (k - 1) of them, grouped by query.
    null: The null block.
    joint: Each query with each of its blocks.
    joint_null: Each query with the null block.
    positions: Positions of the masks in the queries, [b, m].
    targets: Words behind the masks, [b, m].
    weights: Weights of the masks, [b, m].
  """
  batch = len(positions)
  queries = scorer.embedder(**query).projected_score
  others = scorer.embedder(**blocks).projected_score
  scores = torch.cat(
    [
      queries @ scorer.embedder(**null).projected_score.T,
      torch.einsum("bd,bkd->bk", queries, others.unflatten(0, (batch, -1))),
    ],
    dim=1,
  )

  def at_masks(inputs: Inputs) -> torch.Tensor:
    """Returns the hidden states at the masks, [b k m d]."""
    hidden = encoder.realm(**inputs).last_hidden_state
    hidden = hidden.unflatten(0, (batch, -1))
    index = positions[:, None, :, None]
    return hidden.gather(
      2, index.expand(-1, hidden.shape[1], -1, hidden.shape[-1])
    )

  logits = encoder.cls(torch.cat([at_masks(joint_null), at_masks(joint)], 1))
  of_words = logits.float().log_softmax(-1)
  index = targets[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
  of_targets = of_words.gather(-1, index)[..., 0]
  of_blocks = scores.float().log_softmax(1)[..., None]
  likelihood = torch.logsumexp(of_blocks + of_targets, 1)
  return -(likelihood * weights).sum() / weights.sum()


def _losses(
  name: str, options: argparse.Namespace
) -> tuple[dict[str, Callable[[], torch.Tensor]], list[torch.nn.Parameter]]:
  """Returns both losses for random inputs, and the parameters."""
  config = RealmConfig(
    vocab_size=options.vocab,
    hidden_size=options.hidden,
    num_hidden_layers=options.layers,
    num_attention_heads=options.heads,
    intermediate_size=options.inner,
    num_candidates=options.candidates,
    hidden_dropout_prob=options.dropout,
    attention_probs_dropout_prob=options.dropout,
    # These are the same function, with one kernel or eight.
    hidden_act="gelu_pytorch_tanh" if name == "tuned" else "gelu_new",
  )
  torch.manual_seed(0)
  scorer = RealmScorer(config).train()
  encoder = RealmKnowledgeAugEncoder(config).train()
  rng = np.random.default_rng(0)

  def words(*shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.integers(_FIRST_WORD, options.vocab, shape))

  query = words(options.batch, options.query)
  blocks = words(options.batch, options.candidates, options.block)
  joint = words(options.batch, options.candidates, options.joint)
  positions = np.linspace(1, options.query - 2, options.masks).astype(int)
  is_mask = torch.zeros(options.batch, options.joint)
  is_mask[:, positions] = 1
  labels = torch.full((options.batch, options.joint), -100)
  labels[:, positions] = words(options.batch, options.masks)

  def hf() -> torch.Tensor:
    relevance = scorer(
      input_ids=query,
      attention_mask=torch.ones_like(query),
      candidate_input_ids=blocks,
      candidate_attention_mask=torch.ones_like(blocks),
    ).relevance_score
    return encoder(
      input_ids=joint,
      attention_mask=torch.ones_like(joint),
      relevance_score=relevance,
      labels=labels,
      mlm_mask=is_mask,
    ).loss

  def tuned() -> torch.Tensor:
    return tuned_loss(
      scorer,
      encoder,
      query={"input_ids": query},
      blocks={"input_ids": blocks[:, 1:].flatten(0, 1)},
      null={"input_ids": blocks[0, :1, :3]},
      joint={"input_ids": joint[:, 1:].flatten(0, 1)},
      joint_null={"input_ids": joint[:, 0, : options.query + 1]},
      positions=torch.from_numpy(positions).expand(options.batch, -1),
      targets=labels[:, positions],
      weights=torch.ones(options.batch, options.masks),
    )

  parameters = [*scorer.parameters(), *encoder.parameters()]
  return {"hf": hf, "tuned": tuned}, parameters


def step_seconds(name: str, options: argparse.Namespace) -> list[float]:
  """Returns the time of each step except the first."""
  losses, parameters = _losses(name, options)
  optimizer = torch.optim.AdamW(parameters, lr=3e-5, fused=name == "tuned")
  times = []
  for _ in range(options.steps + 1):
    start = time.perf_counter()
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, options.dtype == "bfloat16"):
      loss = losses[name]()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - start)
  return times[1:]


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("name", choices=["hf", "tuned"])
  parser.add_argument("--sizes", required=True)
  parser.add_argument("--steps", type=int, required=True)
  parser.add_argument("--dtype", default="float32")
  options = parser.parse_args()
  torch.set_num_threads(2)
  sizes = {**json.loads(options.sizes), "steps": options.steps}
  seconds = step_seconds(
    options.name, argparse.Namespace(**sizes, dtype=options.dtype)
  )
  # Before the matrix products, which use more memory.
  peak = peak_memory()
  result = {
    "seconds_per_step": statistics.median(seconds),
    "peak_memory_gb": peak / 1e9,
    "matmul_gflops_per_second": matmul_gflops_per_second(
      getattr(torch, options.dtype)
    ),
  }
  print(json.dumps(result))


if __name__ == "__main__":
  main()
