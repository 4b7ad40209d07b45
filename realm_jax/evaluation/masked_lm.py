"""Evaluation of pre-training: masked words with and without retrieval."""

import collections
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterable, Mapping

import jax
from etils import epath

from realm_jax.console.progress import Progress
from realm_jax.evaluation import outputs
from realm_jax.evaluation.generation import open_generation
from realm_jax.evaluation.ranking import BlockRanker
from realm_jax.evaluation.trained_model import (
  ModelSource,
  TrainedModel,
  load_model,
  whole_batch,
)
from realm_jax.generations.follow.loading import Generation
from realm_jax.inputs.batches import Batch, BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import DATA_AXIS
from realm_jax.training.packing.packer import padded
from realm_jax.training.stages.model_inputs import ModelInputs
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.stages.protocol import StageContext

# Means over queries; the other metrics are means over masks.
_QUERY_METRICS = frozenset({"recall", "null_probability", "candidate_entropy"})


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
  model = load_model(source, stage)
  generation = open_generation(model)
  stream = BatchStream(
    dataclasses.replace(data, batch_size=whole_batch(data.batch_size))
  )
  with contextlib.closing(stream):
    batches = itertools.islice(stream, num_batches)
    means = _mean_metrics(model, generation, stage, batches)
  return outputs.report(
    {
      **means.values(),
      "num_queries": means.num_queries,
      "num_masks": means.num_masks,
      "num_candidates": stage.num_candidates,
      "split": data.split,
      "task": data.task,
      "seed": data.seed,
    },
    model,
    generation,
    start=start,
    output_dir=output_dir,
  )


class _Means:
  """Means of metrics over batches, weighted by their queries or masks."""

  def __init__(self) -> None:
    self.num_queries = 0
    self.num_masks = 0
    self._totals: dict[str, float] = collections.defaultdict(float)

  def add(
    self, metrics: Mapping[str, float], *, num_queries: int, num_masks: int
  ) -> None:
    self.num_queries += num_queries
    self.num_masks += num_masks
    for name, value in metrics.items():
      weight = num_queries if name in _QUERY_METRICS else num_masks
      self._totals[name] += weight * value

  def values(self) -> dict[str, float]:
    return {
      name: total
      / (self.num_queries if name in _QUERY_METRICS else self.num_masks)
      for name, total in self._totals.items()
    }


def _mean_metrics(
  model: TrainedModel,
  generation: Generation,
  stage: Pretraining,
  batches: Iterable[Batch],
) -> _Means:
  ranker = BlockRanker(
    model,
    generation,
    num_searched=stage.num_searched(generation.num_blocks),
    current_queries=stage.current_queries,
  )
  loss = stage.loss(model.models)
  measure = jax.jit(
    lambda params, batch: loss(params, batch).means(),
    out_shardings=rules.replicated(model.mesh),
  )
  groups = model.mesh.shape[DATA_AXIS]
  context = StageContext(
    ModelInputs(model.models, groups=groups),
    generation.corpus,
    generation,
    model.source.block_length,
  )
  means = _Means()
  with Progress("sentences") as progress:
    for batch in batches:
      made, host_metrics = stage.assemble(
        batch, ranker.search(batch.arrays["query"]), context
      )
      device_metrics = measure(
        model.params,
        rules.to_devices(padded(made, groups=groups), model.mesh),
      )
      num_queries = len(batch.arrays["query"])
      means.add(
        {
          name: float(value)
          for name, value in {**device_metrics, **host_metrics}.items()
        },
        num_queries=num_queries,
        num_masks=int(batch.arrays["mask_weights"].sum()),
      )
      progress.advance(num_queries)
  return means
