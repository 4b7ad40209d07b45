"""Masked words with and without retrieval: what pre-training has learnt."""

import contextlib
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath

from realm_jax.console.progress import Progress
from realm_jax.evaluation import outputs
from realm_jax.evaluation.ranking import BlockRanker
from realm_jax.evaluation.trained import (
  description,
  load_trained,
  open_generation,
  whole_batch,
)
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever, relevance
from realm_jax.objectives.masked_lm import marginal_masked_lm_loss
from realm_jax.partitioning import rules
from realm_jax.training.stages import Models, Pretraining
from realm_jax.training.step import embed_candidates, read_masks

# Means over queries; the other metrics are means over masks.
_OF_QUERIES = frozenset({"recall", "null_probability", "candidate_entropy"})


def evaluate_masked_lm(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  retriever: Retriever,
  reader: Reader,
  stage: Pretraining,
  task: str = "masked_salient_spans",
  split: str = "train",
  task_modules: Sequence[str] = ("tasks",),
  seed: int = 1_000_003,
  num_batches: int = 32,
  batch_size: int = 32,
  query_length: int = 96,
  block_length: int = 288,
  generation: epath.PathLike | None = None,
  checkpoint_step: int | None = None,
  output_dir: epath.PathLike | None = None,
) -> dict[str, Any]:
  """Fills in masked words from what is retrieved, and from the null block.

  Candidates are those of training: the null block and what the index finds,
  without the sentence's own block. `masked_accuracy` is of the words most
  likely under Σ_z p(z|x) p(y|z, x), `masked_accuracy_null` of those most
  likely under p(y|null, x): the same reader without any text to look at.

  Args:
    model_dir: of a run of pre-training, or one of its checkpoints.
    corpus_dir: what `build_corpus` wrote.
    retriever: the towers of the run.
    reader: its reader.
    stage: how candidates are found.
    task: the seqio task of masked sentences.
    split: of the task.
    task_modules: modules that add seqio tasks when they are imported.
    seed: of which sentences and masks; not the training's.
    num_batches: how many batches.
    batch_size: sentences at once; rounded up to share among the devices.
    query_length: the longest sentence, with [CLS] and [SEP].
    block_length: the longest block.
    generation: a generation, or a folder of them; None takes the one that
      the trainer had in use at the checkpoint.
    checkpoint_step: which checkpoint; None takes the last.
    output_dir: where `metrics.json` goes, if anywhere.

  Returns:
    What `metrics.json` holds: the metrics of `marginal_masked_lm_loss`, and
    `recall`, how often the masked words stand in a retrieved block.

  Raises:
    ValueError: something is missing or does not fit; the message says what.
  """
  if num_batches < 1:
    raise ValueError(f"num_batches={num_batches}; want at least 1")
  start = time.monotonic()
  trained = load_trained(
    model_dir=model_dir,
    corpus_dir=corpus_dir,
    stage=stage,
    retriever=retriever,
    reader=reader,
    query_length=query_length,
    block_length=block_length,
    checkpoint_step=checkpoint_step,
  )
  loaded = open_generation(trained, generation)
  ranker = BlockRanker(
    trained,
    loaded,
    num_searched=stage.num_searched(loaded.num_blocks),
    current_queries=stage.current_queries,
  )
  stream = BatchStream(
    DataConfig(
      task=task,
      split=split,
      corpus_dir=corpus_dir,
      task_modules=task_modules,
      batch_size=whole_batch(batch_size),
      query_length=query_length,
      block_length=block_length,
      seed=seed,
    )
  )
  measure = jax.jit(
    functools.partial(masked_metrics, trained.models, stage.form),
    out_shardings=rules.replicated(trained.mesh),
  )
  totals: dict[str, float] = {}
  num_queries, num_masks = 0, 0
  with contextlib.closing(stream), Progress("sentences") as counter:
    for _, batch in zip(range(num_batches), stream, strict=False):
      found = ranker.search(batch.arrays["query"])
      arrays, of_host = stage.assemble(
        batch,
        found,
        corpus=loaded.corpus,
        generation=loaded,
        block_length=block_length,
      )
      of_device = measure(
        trained.params, rules.to_devices(arrays, trained.mesh)
      )
      queries = len(arrays["query"])
      masks = int(arrays["mask_weights"].sum())
      num_queries += queries
      num_masks += masks
      for name, value in {**of_device, **of_host}.items():
        weight = queries if name in _OF_QUERIES else masks
        totals[name] = totals.get(name, 0.0) + weight * float(value)
      counter.advance(queries)
  result = {
    name: total / (num_queries if name in _OF_QUERIES else num_masks)
    for name, total in totals.items()
  } | {
    "num_queries": num_queries,
    "num_masks": num_masks,
    "num_candidates": stage.num_candidates,
    "split": split,
    "task": task,
    "seed": seed,
    **description(trained, loaded),
    "seconds": round(time.monotonic() - start, 3),
  }
  if output_dir is not None:
    outputs.write_json(epath.Path(output_dir) / outputs.METRICS, result)
  return result


def masked_metrics(
  models: Models,
  form: str,
  params: dict[str, Any],
  batch: dict[str, jax.Array],
) -> dict[str, jax.Array]:
  """The metrics of the pre-training loss, without dropout."""
  retriever, reader = models
  assert reader is not None
  query_vectors, block_vectors = embed_candidates(
    retriever, params["retriever"], batch
  )
  logits = read_masks(reader, params["reader"], batch)
  _, metrics = marginal_masked_lm_loss(
    relevance(query_vectors, block_vectors, score_scale=retriever.score_scale),
    logits,
    batch["mask_targets"],
    batch["mask_weights"],
    form=form,
  )
  return metrics
