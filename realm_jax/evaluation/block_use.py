"""Which block helps a run most with each sentence that it learns from."""

import contextlib
import dataclasses
from typing import NamedTuple

import numpy as np

from realm_jax.console import Progress, columns
from realm_jax.evaluation.explain import (
  marginalize,
  read_masks,
  require_masked_lm_head,
)
from realm_jax.evaluation.explanation import shortened, signed
from realm_jax.evaluation.run import Run, RunConfig
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.settings import PositiveInt


class UsedBlock(NamedTuple):
  """The block that helps most with a sentence.

  Attributes:
    sentence: Sentence with its [MASK]s.
    answer: Words behind them.
    block: `document id:ordinal` of the block.
    title: Title of its document.
    probability: p(z|x).
    utility: log p(y|z,x) − log p(y|null,x).
    reward: r(z), by which a gradient would raise f(x,z).
  """

  sentence: str
  answer: str
  block: str
  title: str
  probability: float
  utility: float
  reward: float


def block_use(
  *, config: RunConfig, data: DataConfig, num_sampled: PositiveInt = 100
) -> list[UsedBlock]:
  """Returns the most useful block of each of some training sentences.

  The candidates are those of training: the null block and the blocks that the
  generation's query tower finds, without the sentence's own block.

  Args:
    config: Run of pre-training.
    data: Task of the masked sentences.
    num_sampled: Number of sentences.

  Raises:
    ExplanationError: The run has no masked-LM head, or too few candidates.
    TaskError: The task gives no masked sentences.
  """
  run = Run.load(config)
  require_masked_lm_head(run)
  words, found = run.vocabulary, []
  data = dataclasses.replace(data, batch_size=1)
  with (
    contextlib.closing(BatchStream(data)) as stream,
    Progress("sentences", total=num_sampled) as progress,
  ):
    for _ in range(num_sampled):
      batch = next(stream)
      query, positions = (
        batch.array("query")[0],
        batch.array("mask_positions")[0],
      )
      num_masks = int((batch.array("mask_weights")[0] > 0).sum())
      targets = batch.array("mask_targets")[0][:num_masks]
      source = int(batch.array("source_hash")[0])
      read = read_masks(
        run, query, positions, num_masks=num_masks, source_hash=source
      )
      given = read.log_probs[:, np.arange(num_masks), targets].sum(axis=1)
      _, shares, rewards = marginalize(read.scores, given)
      best = 1 + int(given[1:].argmax())
      block = run.corpus.block(int(read.rows[best]))
      found.append(
        UsedBlock(
          words.decode(query[query != 0][1:-1].tolist()),
          words.decode(targets.tolist()),
          block.name,
          block.title,
          float(shares[best] - rewards[best]),
          float(given[best] - given[0]),
          float(rewards[best]),
        )
      )
      progress.advance()
  return found


def block_use_text(found: list[UsedBlock]) -> str:
  """Returns a table for a terminal."""
  rows = [["sentence", "y", "block", "p(z|x)", "utility", "r(z)"]]
  for one in found:
    rows.append(
      [
        shortened(one.sentence, 40),
        shortened(one.answer, 16),
        f"{shortened(one.title, 20)} [{one.block}]",
        f"{one.probability:.4f}",
        signed(one.utility),
        signed(one.reward),
      ]
    )
  return columns(rows)
