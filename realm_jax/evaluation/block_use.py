"""Which block helps a run most with each sentence that it learns from."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from realm_jax.console import Progress, columns
from realm_jax.evaluation.explain import require_masked_lm_head
from realm_jax.evaluation.masked_sentences import marginalize, read_masks
from realm_jax.evaluation.run import Run, RunConfig
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.settings import PositiveInt


def block_use(
  *, config: RunConfig, data: DataConfig, num_sampled: PositiveInt = 100
) -> list[dict[str, Any]]:
  """Returns the most useful block of each of some training sentences.

  The candidates are those of training: the null block and the blocks that the
  generation's query tower finds, without the sentence's own block.

  Args:
    config: Run of pre-training.
    data: Task of the masked sentences.
    num_sampled: Number of sentences.

  Returns:
    For each the `sentence`; the `answer`, which is masked; the `block`, by
    name, and its `title`; its `probability` p(z|x), its `utility`, log p(y|z,x)
    − log p(y|null,x), and its `reward` r(z).

  Raises:
    ExplanationError: The run has no masked-LM head, or too few candidates.
    TaskError: The task gives no masked sentences.
  """
  run = Run.load(config)
  require_masked_lm_head(run)
  decode, found = run.vocabulary.decode, []
  stream = BatchStream(dataclasses.replace(data, batch_size=1))
  with contextlib.closing(stream), Progress("sentences") as progress:
    for _ in range(num_sampled):
      batch = next(stream)
      query, positions, weights, targets = (
        batch.array(name)[0]
        for name in ("query", "mask_positions", "mask_weights", "mask_targets")
      )
      is_mask = weights > 0
      targets, positions = targets[is_mask], positions * is_mask
      source = int(batch.array("source_hash")[0])
      read = read_masks(run, query, positions, source_hash=source)
      given = read.log_probs[:, np.arange(len(targets)), targets].sum(axis=1)
      _, shares, rewards = marginalize(read.scores, given)
      best = 1 + int(given[1:].argmax())
      block = run.corpus.block(int(read.rows[best]))
      found.append(
        {
          "sentence": decode(query[query != 0][1:-1].tolist()),
          "answer": decode(targets.tolist()),
          "block": block.name,
          "title": block.title,
          "probability": float(shares[best] - rewards[best]),
          "utility": float(given[best] - given[0]),
          "reward": float(rewards[best]),
        }
      )
      progress.advance()
  return found


def block_use_text(found: Sequence[Mapping[str, Any]]) -> str:
  """Returns a table for a terminal."""
  rows = [
    [v if isinstance(v, float) else f"{v:.40}" for v in one.values()]
    for one in found
  ]
  return columns([[*found[0]], *rows])
