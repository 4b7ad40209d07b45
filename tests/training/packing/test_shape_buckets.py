"""Steps are compiled for a few row counts, which follow from the corpus."""

import functools

import jax
import numpy as np

from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.partitioning.sharding import RowGroups
from realm_jax.training.packing.shape_buckets import (
  abstract_batch,
  choose_shape_buckets,
  shape_key,
)
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.stages.protocol import ExampleArrays
from tests.generations.conftest import make_corpus
from tests.training import tiny


def test_an_abstract_batch_is_what_a_real_one_becomes_on_the_devices():
  mesh = make_mesh(devices=jax.devices()[:2])
  for stage in tiny.STAGES:
    batch = tiny.batch(stage, groups=2)
    placed = sharding.to_devices(batch, mesh)
    abstract = abstract_batch(batch, mesh, groups=sharding.row_groups(mesh))
    same = jax.tree.map(
      lambda a, b: (
        (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)
      ),
      abstract,
      placed,
    )
    assert all(jax.tree.leaves(same)), stage
    assert shape_key(abstract) == shape_key(placed)


def test_buckets_follow_from_the_corpus(tmp_path):
  # A quarter of a block's length is used.
  corpus = make_corpus(tmp_path, num_blocks=40)
  block_length = 4 * int(corpus.lengths.mean())
  shapes = ExampleArrays(
    np.zeros((16, 12), np.int32),
    np.zeros((16, 1, block_length), np.int32),
    num_searched=0,
    max_masks=0,
  )
  choose = functools.partial(
    choose_shape_buckets,
    tiny.OF_STAGE["inverse_cloze"],
    shapes,
    ModelInputs(Models(*tiny.models()), groups=RowGroups.of_one_process(2)),
    corpus,
  )
  buckets = choose(at_most=5)
  assert buckets == choose(at_most=5)
  assert 2 < len(buckets) <= 5
  assert buckets[-1] == (8, 8)
  blocks = [rows for _, rows in buckets]
  assert blocks == sorted(blocks)
  # The first is what most batches need, however many there are.
  assert choose(at_most=2) == [buckets[0], buckets[-1]]
  assert choose(at_most=1) == [buckets[-1]]
