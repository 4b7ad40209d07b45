"""Pre-training that keeps a rolling index, which no builder makes."""

import functools
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.models.components import embed_blocks
from realm_jax.snapshots.embedding import CorpusEmbedder
from realm_jax.snapshots.loading import load_snapshot
from realm_jax.training.metric_rows import read_rows
from tests import tiny_world
from tests.integration.commands import Commands, losses

pytestmark = pytest.mark.slow

_STEPS = 6
_SETTINGS = {
  "NUM_STEPS": _STEPS,
  "SAVE_EVERY_STEPS": 1,
  "KEEP_CHECKPOINTS": _STEPS,
}
_ROLLING = {
  "RETRIEVE_ON_DEVICE": True,
  "FSDP": 2,
  "MODEL_PARALLELISM": 2,
  "AXIS_RULES": [("vocab", None)],
  # Eight of each of eight devices. The first of them has all of so few blocks.
  "BLOCKS_PER_STEP": 64,
}


@pytest.fixture(scope="module")
def rolling(world, tmp_path_factory) -> Path:
  model_dir = tmp_path_factory.mktemp("rolling")
  Commands(world).train("pretrain", model_dir, **_SETTINGS, **_ROLLING)
  return model_dir


def _vectors(model_dir: Path, world: tiny_world.World) -> dict[str, np.ndarray]:
  store = CheckpointStore(model_dir)
  item = store.restore(_STEPS, items=("vectors",))["vectors"]
  store.close()
  return {name: a[: world.corpus.num_blocks] for name, a in item.items()}


def test_each_vector_is_that_of_its_step(rolling, world):
  found, devices = _vectors(rolling, world), len(jax.devices())
  round_steps = -(-world.corpus.num_blocks // (64 // devices))
  assert 1 < round_steps < _STEPS
  assert set(found["steps"]) <= set(range(_STEPS - round_steps, _STEPS))
  ages = [row["staleness_steps"] for row in read_rows(rolling)]
  assert ages[0] == 0
  assert 0 < max(ages) < round_steps
  tokens = world.corpus.gather(
    np.arange(world.corpus.num_blocks), tiny_world.BLOCK_LENGTH
  )
  embed = jax.jit(functools.partial(embed_blocks, world.components().retriever))
  store = CheckpointStore(rolling)
  for step in set(found["steps"]):
    params = store.restore(int(step), items=("retriever",))["retriever"]
    rows = np.flatnonzero(found["steps"] == step)
    expected = embed(params, tokens)[rows]
    np.testing.assert_allclose(found["vectors"][rows], expected, atol=1e-5)
  store.close()


def test_it_resumes_exactly(rolling, world, tmp_path):
  shutil.copytree(rolling / "checkpoints/4", tmp_path / "checkpoints/4")
  Commands(world).train("pretrain", tmp_path, **_SETTINGS, **_ROLLING)
  assert losses(tmp_path) == losses(rolling)[4:]
  before, after = (_vectors(path, world) for path in (rolling, tmp_path))
  for name in ("vectors", "steps"):
    np.testing.assert_array_equal(after[name], before[name])


def test_a_snapshot_takes_its_vectors(rolling, world, monkeypatch):
  monkeypatch.setattr(CorpusEmbedder, "embed", functools.partial(pytest.fail))
  world.build_snapshot(rolling)
  snapshot = load_snapshot(rolling / "snapshots", _STEPS, corpus=world.corpus)
  found = _vectors(rolling, world)
  rows = np.arange(world.corpus.num_blocks)
  assert snapshot.oldest_step == found["steps"].min()
  np.testing.assert_array_equal(snapshot.vectors(rows), found["vectors"])
