"""A rolling refresh makes the oldest vectors again, and only those."""

import functools

import jax
import numpy as np
import pytest

from realm_jax.models.retriever import embed_blocks
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.rolling_index import (
  NEVER,
  NO_BLOCK,
  DatedVectors,
  refresh_oldest,
)
from realm_jax.training.search_in_step import load_blocks
from tests import tiny_world

_LENGTH = tiny_world.BLOCK_LENGTH
_AT_ONCE, _STEPS = 8, 5


@pytest.fixture(scope="module")
def retriever(world):
  return world.models().retriever


@pytest.fixture(scope="module")
def params_of(retriever):
  """Parameters of each step, which have nothing to do with each other."""
  tokens = np.ones((1, 3), np.int32)
  init = jax.jit(lambda key: retriever.init(key, tokens, tokens)["params"])
  return [init(jax.random.key(step)) for step in range(_STEPS)]


@pytest.fixture(scope="module")
def vectors_of(world, retriever, params_of):
  """Vectors of all blocks with the parameters of each step."""
  rows = np.arange(world.corpus.num_blocks)
  tokens = world.corpus.gather(rows, _LENGTH)
  embed = jax.jit(functools.partial(embed_blocks, retriever))
  return np.array([embed(params, tokens) for params in params_of])


@pytest.mark.parametrize(
  "axes", [{}, {"fsdp": 2, "model_parallelism": 2}], ids=["data", "all axes"]
)
def test_each_step_embeds_a_run_of_the_oldest_blocks(
  world, retriever, params_of, vectors_of, axes
):
  corpus, mesh = world.corpus, make_mesh(**axes)
  blocks = load_blocks(corpus, block_length=_LENGTH, mesh=mesh)
  shapes = DatedVectors.abstract(
    corpus.num_blocks, retriever.vector_size, dtype="float32", mesh=mesh
  )
  (capacity,), placed = shapes.steps.shape, shapes.steps.sharding

  @functools.partial(jax.jit, out_shardings=placed)
  def refresh(params, dated, blocks, step):
    return refresh_oldest(
      params,
      dated,
      blocks,
      step,
      retriever=retriever,
      num_blocks=_AT_ONCE,
      mesh=mesh,
    )

  is_block = np.arange(capacity) < corpus.num_blocks
  steps = np.where(is_block, NEVER, NO_BLOCK).astype(np.int32)
  vectors = np.zeros(shapes.vectors.shape, np.float32)
  dated = jax.device_put(DatedVectors(vectors, steps), placed)
  blocks_of_device = capacity // mesh.size
  for step, params in enumerate(params_of):
    number = sharding.replicate(np.asarray(step, np.int32), mesh)
    with jax.set_mesh(mesh):
      dated = refresh(params, dated, blocks, number)
    before, steps = steps, np.asarray(dated.steps)
    changed = (steps != before).reshape(mesh.size, -1)
    for device, own in enumerate(changed):
      share = slice(device * blocks_of_device, (device + 1) * blocks_of_device)
      left = int((before[share] == before[share].min()).sum())
      if before[share].min() == NO_BLOCK:
        assert not own.any()
        continue
      rows = np.flatnonzero(own)
      assert rows[0] == before[share].argmin()
      assert (np.diff(rows) == 1).all()
      assert min(_AT_ONCE, left) <= len(rows) <= _AT_ONCE
  assert (steps[is_block] > NEVER).all()
  assert (steps[~is_block] == NO_BLOCK).all()
  expected = vectors_of[steps[is_block], np.arange(corpus.num_blocks)]
  found = np.asarray(dated.vectors)[is_block]
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
