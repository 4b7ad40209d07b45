"""Evaluation of pre-training: masked words with and without retrieval."""

import collections
import functools
import itertools
import math

import jax
import numpy as np
from etils import epath
from jaxtyping import Float64

from realm_jax.console import Progress
from realm_jax.evaluation.outputs import EvaluationShard, Figures
from realm_jax.evaluation.run import RunConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.models.components import Components
from realm_jax.models.parameters import Params
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.partitioning import sharding
from realm_jax.settings import PositiveInt
from realm_jax.training.encoder_inputs import PackingLayout
from realm_jax.training.stages.pretraining import Pretraining, PretrainingBatch


def evaluate_masked_lm(
  *,
  config: RunConfig,
  data: DataConfig,
  stage: Pretraining,
  num_batches: PositiveInt = 32,
  output_dir: epath.PathLike | None = None,
) -> Figures:
  """Fills in masked words from retrieved blocks, and from the null block.

  The candidates are chosen as in training: the null block and what the index
  finds, without the sentence's own block; or the null block alone, which needs
  no index. Returns the contents of `metrics.json`: the metrics of the stage,
  and perplexities of the masked tokens (docs/evaluation.md).

  Args:
    config: Checkpoint of a run of pre-training, with its reader.
    data: Task of masked sentences. Its seed should not be the training's, so
      that other words are masked. The batch size is rounded up to a multiple
      of the devices.
    stage: Stage that says how candidates are retrieved.
    num_batches: Number of batches.
    output_dir: Directory of `metrics.json`; None writes nothing.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  retrieval = stage.retrieval
  shard = EvaluationShard(
    output_dir, config=config, data=data, stage=stage, num_batches=num_batches
  )
  run = shard.load(
    config, max_batch=data.batch_size, needs_index=retrieval is not None
  )
  measure = sharding.jit_on_mesh(
    weighted_loss,
    stage,
    run.components,
    PackingLayout(run.mesh),
    mesh=run.mesh,
    out_shardings=sharding.replicated(run.mesh),
  )
  context = run.stage_context(retrieval)
  # Of each metric the total and its weight.
  sums: dict[str, Float64[np.ndarray, "2"]] = collections.defaultdict(
    lambda: np.zeros(2)
  )
  with shard.batches(data) as stream, Progress("sentences") as progress:
    for batch in itertools.islice(stream, num_batches):
      found = None
      if retrieval is not None:
        found = run.search_as_trained(stage, batch)
      made, _ = stage.features(batch, found, context)
      placed = sharding.to_devices(made, run.mesh)
      loss, metrics = jax.device_get(measure(run.params, placed))
      for name, average in {"loss": loss, **metrics}.items():
        sums[name] += average
      progress.advance(len(made.query))
  own = {name: average.tolist() for name, average in sums.items()}
  parts = shard.gather_to_leader("sums", own)

  def figures() -> Figures:
    totals = {n: np.sum([p[n] for p in parts], axis=0) for n in parts[0]}
    means = {n: float(total / (w or 1)) for n, (total, w) in totals.items()}
    for name in [name for name in means if name.startswith("log_likelihood")]:
      perplexity = name.replace("log_likelihood", "perplexity")
      means[perplexity] = math.exp(-means[name])
    return {
      **means,
      "num_queries": int(totals["recall"][1]),
      "num_masks": int(totals["masked_accuracy"][1]),
      "num_candidates": stage.num_candidates,
      "split": data.split,
      "task": data.task,
      "seed": data.seed,
    }

  return shard.report(figures, run)


def weighted_loss(
  stage: Pretraining,
  components: Components,
  layout: PackingLayout,
  params: Params,
  batch: PretrainingBatch,
) -> WeightedLoss:
  """Returns the loss of a batch without dropout, and its metrics."""
  encoders = stage.encoders(components, params, None)
  batch = stage.rerank(encoders, batch)
  return layout.with_inputs(
    functools.partial(stage.inputs, components),
    batch,
    lambda inputs: stage.loss(encoders, batch, inputs),
  )
