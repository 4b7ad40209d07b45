"""The packer of a run, and the shapes that its step is compiled for."""

import dataclasses

import numpy as np

from realm_jax.corpus.store import Corpus
from realm_jax.partitioning.sharding import RowGroups
from realm_jax.training.batches import StepBatch
from realm_jax.training.packing.packer import Packer, largest_bucket
from realm_jax.training.packing.shape_buckets import (
  abstract_batch,
  choose_shape_buckets,
)
from realm_jax.training.setup import StepSetup
from realm_jax.training.stages.protocol import ExampleArrays


def empty_arrays(setup: StepSetup, num_rows: int) -> ExampleArrays:
  """Returns arrays of padding, from which a stage makes an example batch."""
  data, stage = setup.config.data, setup.config.stage
  shape = (num_rows, stage.num_candidates, data.block_length)
  return ExampleArrays(
    query=np.zeros((num_rows, data.query_length), np.int32),
    candidates=np.zeros(shape, np.int32),
    num_searched=setup.num_searched,
    max_masks=data.max_masks,
  )


def step_shapes(
  setup: StepSetup, corpus: Corpus | None
) -> tuple[Packer, list[StepBatch]]:
  """Returns the packer, and an abstract batch for each shape bucket.

  The buckets are chosen by the lengths of a corpus. Without one, or without
  packing, the only bucket holds any batch.
  """
  config, inputs = setup.config, setup.inputs
  own = empty_arrays(setup, len(setup.own_rows))
  example = config.stage.example(own, inputs)
  groups = len(inputs.groups.own)
  buckets = [largest_bucket(example, groups=groups)]
  if config.pack and corpus is not None:
    # All processes choose the same ones, by the rows of all groups.
    whole = RowGroups.of_one_process(inputs.groups.count)
    buckets = choose_shape_buckets(
      config.stage,
      empty_arrays(setup, config.data.batch_size),
      dataclasses.replace(inputs, groups=whole),
      corpus,
      at_most=config.max_shape_buckets,
    )
  packer = Packer(buckets, groups=groups, pack=config.pack)
  plans = packer.plan(example)
  return packer, [
    abstract_batch(
      packer.lay_out(example, plans, bucket=bucket),
      setup.mesh,
      groups=inputs.groups,
    )
    for bucket in range(len(buckets))
  ]
