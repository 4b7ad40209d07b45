"""Evaluation of pre-training: masked words with and without retrieval."""

import functools
import itertools
import math
from collections.abc import Sequence

import jax
import numpy as np
from etils import epath

from realm_jax.console import Progress
from realm_jax.evaluation.outputs import EvaluationShard, Figures
from realm_jax.evaluation.run import RunConfig
from realm_jax.evaluation.scores import Line, Scores
from realm_jax.inputs.config import DataConfig
from realm_jax.models.components import Components
from realm_jax.models.parameters import Params
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.partitioning import sharding
from realm_jax.settings import PositiveInt
from realm_jax.training.encoder_inputs import PackingLayout
from realm_jax.training.stages.stage import Stage, StepBatch


def evaluate_masked_lm(
  *,
  config: RunConfig,
  data: DataConfig,
  stage: Stage,
  num_batches: PositiveInt = 32,
  output_dir: epath.PathLike | None = None,
) -> Figures:
  """Fills in masked words from retrieved blocks.

  The candidates are chosen as in training: what the index finds, without the
  sentence's own block, and the null block if the stage has it; or the null
  block alone, which needs no index. Returns the contents of `metrics.json`: the
  metrics of the stage, and perplexities of the masked tokens
  (docs/evaluation.md).

  Args:
    config: Checkpoint of a run of pre-training, with its reader.
    data: Task of masked sentences. Its seed should not be the training's, so
      that other words are masked. The batch size is rounded up to a multiple
      of the devices.
    stage: Stage that masks words and reads candidates, such as `Pretraining`.
    num_batches: Number of batches.
    output_dir: Directory of `metrics.json`, in which an evaluation that was
      killed goes on; None writes nothing.

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
  parts = shard.open_parts(run, data.question_paths, _sums)
  # Batches that are done before this one.
  (done,) = parts.state or (0,)
  with shard.batches(data) as stream, Progress("sentences") as progress:
    batches = itertools.islice(stream, done, num_batches)
    for number, batch in enumerate(batches, done):
      found = None
      if retrieval is not None:
        found = run.search_as_trained(stage, batch)
      made, _ = stage.features(batch, found, context)
      placed = sharding.to_devices(made, run.mesh)
      loss, metrics = jax.device_get(measure(run.params, placed))
      # Of each metric the total and its weight.
      averages = {"loss": loss, **metrics}
      line = {n: np.asarray(a).tolist() for n, a in averages.items()}
      place = number * shard.agreement.count + shard.agreement.index
      parts.add({place: line}, [number + 1])
      progress.advance(len(made.query))
  described: Figures = {
    "num_candidates": stage.num_candidates,
    "split": data.split,
    "task": data.task,
    "seed": data.seed,
  }
  return shard.report_parts(None, parts, described, run, _figures)


def _sums(lines: Sequence[Line]) -> Scores:
  """Returns the total and the weight of each metric in each batch."""
  return {
    f"{name} {part}": np.array([line[name][i] for line in lines])
    for name in lines[0]
    for i, part in enumerate(("total", "weight"))
  }


def _figures(sums: Scores) -> Figures:
  """Returns the metrics of all batches, and the perplexities."""
  totals = {name: float(values.sum()) for name, values in sums.items()}
  names = [n.removesuffix(" total") for n in totals if n.endswith(" total")]
  means = {
    n: totals[f"{n} total"] / (totals[f"{n} weight"] or 1) for n in names
  }
  for name in [name for name in means if name.startswith("log_likelihood")]:
    perplexity = name.replace("log_likelihood", "perplexity")
    means[perplexity] = math.exp(-means[name])
  counted = {
    "num_queries": ("recall", "exact_targets"),
    "num_masks": ("masked_accuracy", "token_accuracy"),
  }
  counts = {
    count: int(totals[f"{name} weight"])
    for count, averages in counted.items()
    for name in averages
    if name in means
  }
  return {**means, **counts}


def weighted_loss(
  stage: Stage,
  components: Components,
  layout: PackingLayout,
  params: Params,
  batch: StepBatch,
) -> WeightedLoss:
  """Returns the loss of a batch without dropout, and its metrics."""
  encoders = stage.encoders(components, params, None)
  batch = stage.rerank(encoders, batch)
  return layout.with_inputs(
    functools.partial(stage.inputs, components),
    batch,
    lambda inputs: stage.loss(encoders, batch, inputs),
  )
