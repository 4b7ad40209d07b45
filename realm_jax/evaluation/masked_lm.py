"""Evaluation of pre-training: masked words with and without retrieval."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jaxtyping import Array, Float, Int

from realm_jax.console import Progress
from realm_jax.errors import RealmError
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.outputs import EvaluationShard, Metrics
from realm_jax.evaluation.scores import Line, Scores
from realm_jax.evaluation.search import search_as_trained
from realm_jax.evaluation.word_memory import WordMemory
from realm_jax.inputs.config import DataConfig
from realm_jax.models.components import Components
from realm_jax.models.parameters import Params
from realm_jax.objectives.masked_lm import knn_lm
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.partitioning import sharding
from realm_jax.settings import PositiveInt
from realm_jax.training.encoder_inputs import EncoderInputs, PackingLayout
from realm_jax.training.stages.stage import Stage, StepBatch

# Values of λ and τ for a memory, to choose from; the first does not use it.
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99)
_TEMPERATURES = (0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3)
_GRID = ((0.0, 1.0), *itertools.product(_SHARES, _TEMPERATURES))


def evaluate_masked_lm(
  *,
  config: RunConfig,
  data: DataConfig,
  stage: Stage,
  num_batches: PositiveInt = 32,
  output_dir: epath.PathLike | None = None,
  memory: epath.PathLike | None = None,
) -> Metrics:
  """Fills in masked words from retrieved blocks.

  The candidates are chosen as in training: retrieved blocks, without the source
  of the sentence, and the null block if the stage has one; or only the null
  block, which needs no index. Returns the contents of `metrics.json`: the
  metrics of the stage, and perplexities of the masked tokens
  (docs/evaluation.md).

  Args:
    config: Checkpoint of a run of pre-training, with its reader.
    data: Task of masked sentences. Its seed should not be the training's, so
      that other words are masked. The batch size is rounded up to a multiple
      of the devices.
    stage: Stage that masks words and reads candidates, such as `Pretraining`.
    num_batches: Number of batches.
    output_dir: Directory of `metrics.json`, in which a killed evaluation
      continues; None writes nothing.
    memory: Memory that is mixed with p(y|x), as `realm_jax.build_memory` wrote
      it. λ and τ are chosen on half of the blocks, and measured on the others.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.

  Example:
    >>> from realm_jax.training.stages.pretraining import Pretraining
    >>> data = DataConfig(
    ...   task="masked_salient_spans", corpus_dir="corpus", batch_size=8,
    ...   query_length=16, block_length=40,
    ... )
    >>> metrics = evaluate_masked_lm(
    ...   config=realm_jax.load("runs/realm").config, data=data,
    ...   stage=Pretraining(num_candidates=3), num_batches=1,
    ... )
    >>> metrics["num_queries"]
    8
  """
  retrieval = stage.retrieval
  settings = {"num_batches": num_batches, "memory": memory}
  shard = EvaluationShard(
    output_dir, config=config, data=data, stage=stage, **settings
  )
  run = shard.load(
    config, max_batch=data.batch_size, needs_index=retrieval is not None
  )
  everywhere = sharding.replicated(run.mesh)
  compiled = functools.partial(
    sharding.jit_on_mesh, mesh=run.mesh, out_shardings=everywhere
  )
  args = stage, run.components, PackingLayout(run.mesh)
  measure, on_grid = compiled(weighted_loss, *args), compiled(_on_grid, *args)
  if memory is not None and not stage.null_block:
    raise RealmError("a memory is of the null block; set NULL_BLOCK = True")
  words = None if memory is None else WordMemory(memory, run)
  context = run.stage_context(retrieval)
  parts = shard.open_parts(run, data.question_paths, _sums)
  # Number of batches that are already done.
  (done,) = parts.state or (0,)
  with shard.batches(data) as stream, Progress("sentences") as progress:
    batches = itertools.islice(stream, done, num_batches)
    for number, batch in enumerate(batches, done):
      retrieved = None
      if retrieval is not None:
        retrieved = search_as_trained(run, stage, batch)
      features, _ = stage.features(batch, retrieved, context)
      placed = sharding.to_devices(features, run.mesh)
      loss, metrics = jax.device_get(measure(run.params, placed))
      # Total and weight of each metric.
      averages = {"loss": loss, **metrics}
      if words is not None:
        masks, sources = features.masks, batch.array("source_hash")
        near = words.nearest(features.query, masks.positions, sources)
        near = sharding.to_devices(near, run.mesh)
        scored = jax.device_get(on_grid(run.params, placed, *near))
        # λ and τ are chosen on one half of the blocks.
        is_half = sources % 2 == np.arange(2)[:, None]
        weights = is_half[..., None] * masks.weights
        totals = np.einsum("grabm,hbm->hgra", scored, weights)
        averages["memory"] = totals, weights.sum(axis=(1, 2))
      line = jax.tree.map(lambda a: np.asarray(a).tolist(), averages)
      place = number * shard.agreement.count + shard.agreement.index
      parts.add({place: line}, [number + 1])
      progress.advance(len(features.query))
  described: Metrics = {
    "num_candidates": stage.num_candidates,
    "split": data.split,
    "task": data.task,
    "seed": data.seed,
  }
  return shard.report_parts(None, parts, described, run, _metrics)


def _sums(lines: Sequence[Line]) -> Scores:
  """Returns the total and the weight of each metric in each batch."""
  return {
    f"{name} {part}": np.array([line[name][i] for line in lines])
    for name in lines[0]
    for i, part in enumerate(("total", "weight"))
  }


def _metrics(sums: Scores) -> Metrics:
  """Returns the metrics of all batches, and the perplexities."""
  totals: Any = {n: values.sum(axis=0).tolist() for n, values in sums.items()}
  memory = [totals.pop(f"memory {part}", None) for part in ("total", "weight")]
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
  of_memory = {} if memory[0] is None else _of_memory(*map(np.array, memory))
  return {**means, **counts, **of_memory}


def _of_memory(
  totals: Float[np.ndarray, "2 g 2 2"], weights: Float[np.ndarray, "2"]
) -> Metrics:
  """Returns metrics of the second half, by the best λ and τ of the first.

  The axes of `totals` are the half, the point of the grid, null block or all
  candidates, and log p or hits.
  """
  metrics: Metrics = {"num_masks_memory": int(weights[1])}
  for reader, suffix in enumerate(("_null", "")):
    best = int(np.argmax(totals[0, :, reader, 0]))
    names = f"memory_share{suffix}", f"memory_temperature{suffix}"
    metrics |= zip(names, _GRID[best], strict=True)
    for name, point in (("without_memory", 0), ("with_memory", best)):
      means = totals[1, point, reader] / max(weights[1], 1)
      metrics[f"perplexity{suffix}_{name}"] = math.exp(-means[0])
      metrics[f"masked_accuracy{suffix}_{name}"] = float(means[1])
  return metrics


def _on_grid(
  stage: Stage,
  components: Components,
  layout: PackingLayout,
  params: Params,
  batch: StepBatch,
  scores: Float[Array, "b m k"],
  words: Int[Array, "b m k"],
) -> Float[Array, "g 2 2 b m"]:
  """Returns log p and hits by the null block, and by all candidates."""
  encoders = stage.encoders(components, params, None)
  batch = stage.rerank(encoders, batch)
  masks = batch.masks

  def log_probs(inputs: EncoderInputs) -> list[Float[Array, "b m v"]]:
    given = inputs.reader, masks.positions, masks.token_ids
    logits = encoders.apply("reader", *given, method="token_logits")
    prior = jax.nn.log_softmax(encoders.candidate_scores(inputs))
    by_block = jax.nn.log_softmax(logits)
    joint = prior[..., None, None] + by_block
    return [by_block[:, 0], jax.nn.logsumexp(joint, axis=1)]

  make = functools.partial(stage.inputs, components)
  read = layout.with_inputs(make, batch, log_probs)
  mixed = jax.vmap(knn_lm, in_axes=(0, 0, 0, 0, None, None))
  given = scores, words, masks.token_ids
  return jax.lax.map(
    lambda point: jnp.array([mixed(p, *given, *point) for p in read]),
    jnp.array(_GRID),
  )


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
