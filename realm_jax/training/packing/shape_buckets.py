"""Chooses the shape buckets: the row counts that a step is compiled for.

They are chosen before the first step, so that each is compiled once: one that
holds most batches, one that holds any, and some between, in a geometric series.
"""

import math
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.partitioning import sharding
from realm_jax.training.batches import StepBatch
from realm_jax.training.packing import packer
from realm_jax.training.stages.model_inputs import ModelInputs
from realm_jax.training.stages.protocol import ExampleArrays, Stage

# Random batches from which the rows that most batches need are estimated.
_SAMPLES = 8
# Factor of that estimate: retrieved blocks may be longer than random ones. A
# step that needs more takes the next bucket, which costs little more.
_MARGIN = 1.05
# Share of the next bucket's tokens that a bucket saves, to be worth compiling.
_MIN_SAVING = 0.15


def choose_shape_buckets(
  stage: Stage,
  shapes: ExampleArrays,
  inputs: ModelInputs,
  corpus: Corpus,
  *,
  at_most: int,
) -> list[packer.ShapeBucket]:
  """Chooses buckets from the one that most batches need to one that holds any.

  They follow from the shapes and from random sentences and blocks of the corpus
  alone. A resumed run must have the same buckets, or its sums would be rounded
  differently.
  """
  groups = len(inputs.groups.own)
  needed = []
  for batch in random_batches(stage, shapes, inputs, corpus):
    needed.append(packer.needed_bucket(batch, groups=groups))
  largest = packer.largest_bucket(batch, groups=groups)
  usual = tuple(
    min(math.ceil(max(rows) * _MARGIN), most)
    for rows, most in zip(zip(*needed, strict=True), largest, strict=True)
  )
  lengths = [rows.token_ids.shape[1] for rows in packer.encoder_inputs(batch)]
  ratio = np.dot(usual, lengths) / np.dot(largest, lengths)
  useful = 1 + int(math.log(ratio) / math.log(1 - _MIN_SAVING))
  return _geometric(usual, largest, num_buckets=min(at_most, useful))


def random_batches(
  stage: Stage, shapes: ExampleArrays, inputs: ModelInputs, corpus: Corpus
) -> Iterator[StepBatch]:
  """Yields batches of random sentences and blocks, the same in every call."""
  rng = np.random.default_rng(0)
  num_queries, query_length = shapes.query.shape
  *shape, block_length = shapes.candidates.shape
  for _ in range(_SAMPLES):
    rows = rng.integers(corpus.num_blocks, size=num_queries)
    query = corpus.random_sentences(rows, query_length, rng)
    rows = rng.integers(corpus.num_blocks, size=shape)
    if stage.has_null_block:
      rows[:, 0] = NULL_ROW
    candidates = corpus.gather(rows, block_length)
    random = shapes._replace(query=query, candidates=candidates)
    yield stage.example(random, inputs)


def _geometric(
  usual: packer.ShapeBucket, largest: packer.ShapeBucket, *, num_buckets: int
) -> list[packer.ShapeBucket]:
  """Returns buckets whose rows grow by the same factors, up to the largest."""
  steps = num_buckets - 1
  smaller = [
    tuple(
      math.ceil(rows * (most / rows) ** (step / steps))
      for rows, most in zip(usual, largest, strict=True)
    )
    for step in range(steps)
  ]
  return [*smaller, largest]


def abstract_batch(
  batch: StepBatch, mesh: Mesh, *, groups: sharding.RowGroups
) -> StepBatch:
  """Returns abstract arrays like those of a laid-out batch on the devices.

  `batch` has the rows of the groups of this process.
  """

  def abstract(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    rows, *rest = leaf.shape
    return jax.ShapeDtypeStruct(
      (rows // len(groups.own) * groups.count, *rest),
      jax.dtypes.canonicalize_dtype(leaf.dtype),
      sharding=sharding.batch_sharding(mesh),
    )

  return jax.tree.map(abstract, batch)


def shape_key(batch: StepBatch) -> tuple[int, ...]:
  """Returns the rows of all groups together, by encoder input.

  They tell the compiled steps of a run apart.
  """
  return tuple(len(rows.token_ids) for rows in packer.encoder_inputs(batch))
