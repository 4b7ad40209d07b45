"""Evaluation of pre-training: masked words with and without retrieval."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Int64

from realm_jax.console import Progress
from realm_jax.corpus.store import NULL_ROW
from realm_jax.evaluation.outputs import EvaluationShard, Figures
from realm_jax.evaluation.run import Run, RunConfig
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.inputs.config import DataConfig
from realm_jax.models.parameters import Params
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.partitioning import sharding
from realm_jax.settings import PositiveInt
from realm_jax.storage.access import require_writable
from realm_jax.training.row_layout import RowLayout
from realm_jax.training.stages.pretraining import Pretraining, PretrainingBatch
from realm_jax.training.stages.stage import StageContext
from realm_jax.training.step import Loss, RowsOf


def evaluate_masked_lm(
  *,
  config: RunConfig,
  data: DataConfig,
  stage: Pretraining,
  num_batches: PositiveInt = 32,
  previous_generation: epath.PathLike | None = None,
  output_dir: epath.PathLike | None = None,
) -> Figures:
  """Fills in masked words from retrieved blocks, and from the null block.

  The candidates are those of training: the null block and what the index
  finds, without the sentence's own block. `masked_accuracy` counts the words
  that are most likely under Σ_z p(z|x) p(y|z, x), and `masked_accuracy_null`
  those most likely under p(y|null, x), which is the same reader without any
  text to look at.

  Args:
    config: Checkpoint of a run of pre-training, with its reader.
    data: Task of masked sentences. Its seed should not be the training's, so
      that other words are masked. The batch size is rounded up to a multiple
      of the devices.
    stage: Stage that says how candidates are retrieved.
    num_batches: Number of batches.
    previous_generation: Another generation, such as the one published before,
      whose candidates are compared with those of the generation in use; None
      compares none.
    output_dir: Directory of `metrics.json`; None writes nothing.

  Returns:
    Contents of `metrics.json`: the metrics of `marginal_masked_lm_loss`;
    `perplexity` of the masked tokens, exp(−log p(y|x)), and
    `perplexity_null`, that with the null block alone; and `recall`, the share
    of queries whose masked words a retrieved block has. With a previous
    generation, `top_block_changed`, the share of queries whose best block is
    another one, and `candidates_changed`, the share of the retrieved blocks
    that it did not retrieve.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  if num_batches < 1:
    raise ValueError(f"num_batches={num_batches}; want at least 1")
  shard = EvaluationShard(
    output_dir,
    config=config,
    data=data,
    stage=stage,
    num_batches=num_batches,
    previous_generation=previous_generation,
  )
  require_writable(output_dir)
  run = Run.load(config, max_batch=data.batch_size)
  shard.require_same_run(run)
  previous = None
  if previous_generation is not None:
    before = dataclasses.replace(config, generation=previous_generation)
    previous = Run.load(before, max_batch=data.batch_size)
    shard.require_same_run(previous)
  with shard.batches(data) as stream:
    batches = itertools.islice(stream, num_batches)
    own = _Evaluation(run, stage, previous).of(batches)
  parts = shard.gather_to_leader("sums", jax.tree.map(float, own._asdict()))

  def metrics() -> Figures:
    sums = _added(parts)
    means = {name: float(mean) for name, mean in sums.means().items()}
    if previous is not None:
      means["previous_generation"] = previous.generation.step
    perplexities = {
      name.replace("log_likelihood", "perplexity"): math.exp(-mean)
      for name, mean in means.items()
      if name.startswith("log_likelihood")
    }
    return {
      **means,
      **perplexities,
      "num_queries": int(sums.metrics["recall"].weight),
      "num_masks": int(sums.metrics["masked_accuracy"].weight),
      "num_candidates": stage.num_candidates,
      "split": data.split,
      "task": data.task,
      "seed": data.seed,
    }

  return shard.report(metrics, run)


def _added(parts: Sequence[Mapping[str, Any]]) -> WeightedLoss:
  """Adds the fields of all processes' sums, of which JSON has made lists."""

  def added(averages: Sequence[Sequence[float]]) -> Average:
    return Average(*jnp.asarray(np.sum(averages, axis=0), jnp.float32))

  names = parts[0]["metrics"]
  return WeightedLoss(
    added([part["loss"] for part in parts]),
    {name: added([part["metrics"][name] for part in parts]) for name in names},
  )


def weighted_loss(
  rows_of: RowsOf[PretrainingBatch],
  loss: Loss[PretrainingBatch],
  layout: RowLayout,
  params: Params,
  batch: PretrainingBatch,
) -> WeightedLoss:
  """Returns the loss of a batch without dropout, and its metrics."""
  numbers = jnp.arange(len(batch.query), dtype=jnp.uint32)
  return layout.with_rows(
    lambda numbered: rows_of(*numbered),
    (batch, numbers),
    lambda rows: loss(params, batch, rows, None),
  )


class _Evaluation:
  """Measures batches with one checkpoint and the generation in use.

  With a `previous` run, of another generation, candidates are compared.
  """

  def __init__(self, run: Run, stage: Pretraining, previous: Run | None):
    self._run, self._stage, self._previous = run, stage, previous
    rows_of, loss = stage.functions(run.models)
    self._measure = sharding.jit_on_mesh(
      weighted_loss,
      rows_of,
      loss,
      RowLayout(run.mesh),
      mesh=run.mesh,
      out_shardings=sharding.replicated(run.mesh),
    )

  def of(self, batches: Iterable[Batch]) -> WeightedLoss:
    """Returns the weighted sums over all batches."""
    sums: list[WeightedLoss] = []
    with Progress("sentences") as progress:
      for batch in batches:
        sums.append(self._of_batch(batch))
        progress.advance(len(batch.arrays["query"]))
    return jax.tree.map(lambda *parts: sum(parts), *sums)

  def _of_batch(self, batch: Batch) -> WeightedLoss:
    run = self._run
    retrieved = self._search(run, batch)
    context = StageContext(run.corpus, run.generation, run.config.block_length)
    made, host_metrics = self._stage.assemble(batch, retrieved, context)
    placed = sharding.to_devices(made, run.mesh)
    weighted = jax.device_get(self._measure(run.params, placed))
    if self._previous is not None:
      host_metrics |= self._changes(batch, retrieved, self._previous)
    num_queries = len(batch.arrays["query"])
    for name, value in host_metrics.items():
      mean = Average.of(jnp.full(num_queries, value))
      weighted.metrics[name] = jax.device_get(mean)
    return weighted

  def _search(self, run: Run, batch: Batch) -> SearchResult:
    """Searches as training does, which takes the order of the index."""
    number = self._stage.num_searched(run.generation.num_blocks)
    token_ids, vectors = batch.arrays["query"], None
    if run.generation.index.needs_vectors:
      current = self._stage.current_queries
      vectors = run.embed_tokens(token_ids, current=current)
    return run.search_index(token_ids, vectors, number)

  def _changes(
    self, batch: Batch, retrieved: SearchResult, previous: Run
  ) -> dict[str, float]:
    """Compares the candidates of queries with those of another generation."""

    def ids(run: Run, found: SearchResult) -> Int64[np.ndarray, "b k"]:
      """Returns the ids of candidates; versions of a corpus differ in rows."""
      rows = self._stage.candidate_rows(batch, found, run.corpus)
      return np.where(rows == NULL_ROW, NULL_ROW, run.corpus.block_ids[rows])

    now_ids = ids(self._run, retrieved)
    before_ids = ids(previous, self._search(previous, batch))
    is_known = (now_ids[:, :, None] == before_ids[:, None, :]).any(axis=2)
    return {
      "top_block_changed": float((now_ids[:, 0] != before_ids[:, 0]).mean()),
      "candidates_changed": float(1.0 - is_known.mean()),
    }
