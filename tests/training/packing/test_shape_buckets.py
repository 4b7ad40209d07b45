"""Steps are compiled for a few row counts, which follow from the corpus."""

import functools

import jax
import numpy as np

from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.partitioning.rules import RowGroups
from realm_jax.training.packing.packer import Packer
from realm_jax.training.packing.shape_buckets import (
  abstract_batch,
  choose_shape_buckets,
  random_batches,
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
    placed = rules.to_devices(batch, mesh)
    abstract = abstract_batch(batch, mesh, groups=rules.row_groups(mesh))
    same = jax.tree.map(
      lambda a, b: (
        (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)
      ),
      abstract,
      placed,
    )
    assert all(jax.tree.leaves(same)), stage
    assert shape_key(abstract) == shape_key(placed)


def test_every_stage_has_an_example_of_its_batches():
  inputs = ModelInputs(Models(*tiny.models()))
  for name, stage in tiny.OF_STAGE.items():
    arrays = tiny.arrays(name)
    real = tiny.batch(name)
    blocks = arrays.get("candidates", arrays.get("block"))
    example = Packer([shape_key(real)], groups=1, pack=False)(
      stage.example(
        ExampleArrays(
          arrays["query"],
          blocks.reshape(tiny.BATCH, -1, tiny.BLOCK),
          tiny.SEARCHED,
          tiny.MASKS,
        ),
        inputs,
      )
    )
    assert jax.tree.structure(example) == jax.tree.structure(real)
    mesh = make_mesh(devices=jax.devices()[:1])
    shapes = [
      jax.tree.map(
        lambda x: (x.shape, x.dtype),
        abstract_batch(batch, mesh, groups=rules.ONE_GROUP),
      )
      for batch in (example, real)
    ]
    if name == "open_qa":
      # The widest answer is the stage's own here.
      shapes = [shape._replace(is_answer=None) for shape in shapes]
    assert shapes[0] == shapes[1], name


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


def test_the_null_block_of_pretraining_is_counted_as_what_it_is(tmp_path):
  corpus = make_corpus(tmp_path, num_blocks=40)
  stage = tiny.OF_STAGE["pretraining"]
  shapes = ExampleArrays(
    np.zeros((8, 12), np.int32),
    np.zeros((8, stage.num_candidates, 32), np.int32),
    num_searched=5,
    max_masks=2,
  )
  inputs = ModelInputs(Models(*tiny.models()))
  batch = next(random_batches(stage, shapes, inputs, corpus))
  # All queries share it, so it is embedded once.
  (null,) = set(batch.block_index[:, 0])
  assert np.count_nonzero(batch.blocks.token_ids[null]) == 3
