"""Evaluation of pre-training: masked words with and without retrieval."""

import functools
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from realm_jax.console.progress import Progress
from realm_jax.evaluation import outputs
from realm_jax.evaluation.generation import open_generation
from realm_jax.evaluation.ranking import BlockRanker
from realm_jax.evaluation.shares import Share
from realm_jax.evaluation.trained_model import (
  ModelSource,
  TrainedModel,
  load_model,
)
from realm_jax.generations.follow.loading import Generation
from realm_jax.inputs.batches import Batch
from realm_jax.inputs.config import DataConfig
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.partitioning import rules
from realm_jax.training.packing.packer import padded
from realm_jax.training.stages.model_inputs import ModelInputs
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.stages.protocol import StageContext


def evaluate_masked_lm(
  *,
  source: ModelSource,
  data: DataConfig,
  stage: Pretraining,
  num_batches: int = 32,
  output_dir: epath.PathLike | None = None,
) -> outputs.Figures:
  """Fills in masked words from retrieved blocks, and from the null block.

  The candidates are those of training: the null block and what the index
  finds, without the sentence's own block. `masked_accuracy` counts the words
  that are most likely under Σ_z p(z|x) p(y|z, x), and `masked_accuracy_null`
  those most likely under p(y|null, x), which is the same reader without any
  text to look at.

  Args:
    source: Checkpoint of a run of pre-training, with its reader.
    data: Task of masked sentences. Its seed should not be the training's, so
      that other words are masked. The batch size is rounded up to a multiple
      of the devices.
    stage: Stage that says how candidates are retrieved.
    num_batches: Number of batches.
    output_dir: Directory of `metrics.json`; None writes nothing.

  Returns:
    Contents of `metrics.json`: the metrics of `marginal_masked_lm_loss`, and
    `recall`, the share of queries whose masked words a retrieved block has.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  if num_batches < 1:
    raise ValueError(f"num_batches={num_batches}; want at least 1")
  start = time.monotonic()
  share = Share(source=source, data=data, stage=stage, num_batches=num_batches)
  model = load_model(source, stage)
  generation = open_generation(model)
  share.require_same(model, generation)
  with share.batches(data) as stream:
    batches = itertools.islice(stream, num_batches)
    own = _evaluate_batches(model, generation, stage, batches)
  parts = share.gathered("sums", jax.tree.map(float, own._asdict()))

  def metrics() -> outputs.Figures:
    sums = _added(parts)
    return {
      **{name: float(mean) for name, mean in sums.means().items()},
      "num_queries": int(sums.metrics["recall"].weight),
      "num_masks": int(sums.metrics["masked_accuracy"].weight),
      "num_candidates": stage.num_candidates,
      "split": data.split,
      "task": data.task,
      "seed": data.seed,
    }

  return outputs.report(
    metrics,
    model,
    generation,
    start=start,
    output_dir=output_dir,
    share=share,
  )


def _added(parts: Sequence[Mapping[str, Any]]) -> WeightedLoss:
  """Adds the fields of all processes' sums, of which JSON has made lists."""

  def added(averages: Sequence[Sequence[float]]) -> Average:
    return Average(*jnp.asarray(np.sum(averages, axis=0), jnp.float32))

  names = parts[0]["metrics"]
  return WeightedLoss(
    added([part["loss"] for part in parts]),
    {name: added([part["metrics"][name] for part in parts]) for name in names},
  )


def _evaluate_batches(
  model: TrainedModel,
  generation: Generation,
  stage: Pretraining,
  batches: Iterable[Batch],
) -> WeightedLoss:
  """Returns the weighted sums over all batches, `recall` among the metrics."""
  ranker = BlockRanker(
    model,
    generation,
    num_searched=stage.num_searched(generation.num_blocks),
    current_queries=stage.current_queries,
  )
  measure = jax.jit(
    stage.loss(model.models), out_shardings=rules.replicated(model.mesh)
  )
  groups = rules.row_groups(model.mesh)
  lay_out = functools.partial(padded, groups=len(groups.own))
  context = StageContext(
    ModelInputs(model.models, groups=groups),
    generation.corpus,
    generation,
    model.source.block_length,
  )
  sums: list[WeightedLoss] = []
  with Progress("sentences") as progress:
    for batch in batches:
      made, host_metrics = stage.assemble(
        batch, ranker.search(batch.arrays["query"]), context
      )
      placed = rules.to_devices(lay_out(made), model.mesh)
      weighted = jax.device_get(measure(model.params, placed))
      num_queries = len(batch.arrays["query"])
      recall = jnp.full(num_queries, host_metrics["recall"])
      weighted.metrics["recall"] = jax.device_get(Average.of(recall))
      sums.append(weighted)
      progress.advance(num_queries)
  return jax.tree.map(lambda *parts: sum(parts), *sums)
