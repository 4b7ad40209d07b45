"""A run continues exactly from its last checkpoint, and starts from others."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from realm_jax.checkpoints.store import CheckpointError, CheckpointStore
from realm_jax.partitioning.mesh import MESH_AXES, make_mesh
from realm_jax.training.checkpointing import (
  Checkpointer,
  LoopState,
  RetrievedIds,
  RunIdentity,
)
from realm_jax.training.config import CheckpointConfig
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.rolling_index import NO_BLOCK, DatedVectors
from tests.training import tiny

pytestmark = pytest.mark.slow

IDENTITY = RunIdentity(
  seed=5,
  batch_size=8,
  num_searched=2,
  save_every_steps=10,
  held_out_blocks=0,
  lag_steps=5,
  vocabulary="ab" * 32,
  corpus_version=3,
  corpus_fingerprint="cd" * 32,
)
_ROWS = np.arange(IDENTITY["batch_size"])
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1.0), num_steps=10)


@functools.cache
def _drawn(stage, fsdp, model_parallelism):
  mesh = make_mesh(fsdp=fsdp, model_parallelism=model_parallelism)
  return tiny.state(stage, OPTIMIZER, mesh)[0]


def _state(
  stage="inverse_cloze", *, step=0, shift=0.0, fsdp=1, model_parallelism=1
):
  """A state whose every value differs from that of another shift.

  That of inverse cloze, which has no reader, has half as many arrays.
  """
  state = jax.tree.map(
    lambda x: jax.device_put(np.asarray(x) + x.dtype.type(shift), x.sharding),
    _drawn(stage, fsdp, model_parallelism),
  )
  return state._replace(
    step=jax.device_put(np.int32(step), state.step.sharding)
  )


@pytest.fixture
def store(tmp_path):
  store = CheckpointStore(tmp_path)
  yield store
  store.close()


def _save(store, state, loop_state):
  Checkpointer(store, IDENTITY, CheckpointConfig()).save(state, loop_state)
  store.wait()


def _restore(store, state, *, sources=None, **changes):
  """What a run begins with: the state and the loop's."""
  identity = RunIdentity(**{**IDENTITY, **changes})
  config = sources or CheckpointConfig()
  return Checkpointer(store, identity, config).initialize_or_restore(state)


@pytest.fixture
def start(tmp_path_factory):
  """`start(state, initial_checkpoint=…)`: the parameters of a new run."""
  store = CheckpointStore(tmp_path_factory.mktemp("new"))

  def started(state, *, vocabulary=IDENTITY["vocabulary"], **sources):
    config = CheckpointConfig(**sources)
    begun = _restore(store, state, sources=config, vocabulary=vocabulary)
    return begun[0].params

  yield started
  store.close()


def _assert_same(one, two):
  jax.tree.map(
    np.testing.assert_array_equal, jax.device_get(one), jax.device_get(two)
  )


def _table(state):
  return state.optimizer[1].mu["reader"]["encoder"]["word_embeddings"]


def test_everything_comes_back_and_lies_where_it_should(store):
  saved = _state("pretraining", step=12, shift=2.0, fsdp=8)
  assert _table(saved).sharding.shard_shape((40, 8)) == (40, 1)
  retrieved = RetrievedIds(
    # Of 63 bits, which devices do not have.
    ids=(2**63 - 1 - np.arange(16)).reshape(8, 2),
    scores=np.linspace(-1, 3, 16, dtype=np.float32).reshape(8, 2),
  )
  positions = 2**40 + 8 * np.arange(8)[::-1] + np.arange(8)
  _save(store, saved, LoopState(positions, generation=8, retrieved=retrieved))
  # The successor may be laid out otherwise.
  fresh = _state("pretraining", fsdp=2, model_parallelism=2)
  state, loop = _restore(store, fresh)
  _assert_same(state, saved)
  assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
    lambda x: x.sharding, fresh
  )
  assert _table(state).sharding.shard_shape((40, 8)) == (20, 4)
  assert loop.generation == 8
  np.testing.assert_array_equal(loop.positions, positions)
  np.testing.assert_array_equal(loop.retrieved.ids, retrieved.ids)
  np.testing.assert_array_equal(loop.retrieved.scores, retrieved.scores)


def test_own_vectors_come_back_on_other_devices(store):
  rng = np.random.default_rng(0)
  dated = jax.device_put(
    DatedVectors(
      rng.normal(size=(32, 4)).astype(jnp.bfloat16),
      np.array([*range(20), *12 * [NO_BLOCK]], np.int32),
    ),
    NamedSharding(make_mesh(), PartitionSpec(MESH_AXES)),
  )
  state = _state()._replace(index=dated)
  _save(store, state, LoopState(_ROWS, indexed_corpus="cd" * 32))
  checkpoints = Checkpointer(store, IDENTITY, CheckpointConfig())
  mesh = make_mesh(devices=jax.devices()[:4])
  there = NamedSharding(mesh, PartitionSpec(MESH_AXES))
  like, padded_otherwise = (
    {
      "vectors": jax.ShapeDtypeStruct((n, 4), jnp.bfloat16, sharding=there),
      "steps": jax.ShapeDtypeStruct((n,), np.int32, sharding=there),
    }
    for n in (32, 24)
  )
  found = checkpoints.own_vectors(0, "cd" * 32, like)
  assert found["vectors"].sharding == there
  _assert_same(found, dated._asdict())
  # They are embedded again.
  assert checkpoints.own_vectors(0, "cd" * 32, padded_otherwise) is None
  assert checkpoints.own_vectors(0, "ef" * 32, like) is None


def test_a_run_with_other_settings_is_refused(store):
  _save(store, _state(), LoopState(_ROWS))
  fresh = _state()
  for other, named in (
    ({"seed": 2}, "SEED"),
    ({"batch_size": 4}, "BATCH_SIZE"),
    ({"num_searched": 3}, "NUM_CANDIDATES or NUM_SEARCHED"),
    ({"save_every_steps": 20}, "SAVE_EVERY_STEPS"),
    ({"lag_steps": 0}, "LAG_STEPS and WAIT_FOR_GENERATIONS"),
    ({"held_out_blocks": 3}, "HELD_OUT_BLOCKS"),
    ({"vocabulary": "cd" * 32}, "--vocab"),
  ):
    with pytest.raises(CheckpointError, match=named):
      _restore(store, fresh, **other)
  with pytest.raises(CheckpointError, match="reader"):
    _restore(store, _state("pretraining"))


@pytest.mark.parametrize("loop", [None, {"generation": 0, "positions": 4}])
def test_what_another_format_or_no_trainer_saved_is_no_run_to_go_on_from(
  store, tmp_path, start, loop
):
  state = _state(shift=1.0)
  items = {**state.params, "optimizer": state.optimizer}
  if loop is not None:
    items["loop"] = {name: np.int64(value) for name, value in loop.items()}
  store.save(0, items)
  store.wait()
  with pytest.raises(CheckpointError, match="INITIAL_CHECKPOINT"):
    _restore(store, _state())
  # As the message says, another run may start from it.
  _assert_same(start(_state(), initial_checkpoint=tmp_path), state.params)


def test_a_stage_starts_from_the_one_before(store, tmp_path, start):
  earlier = _state("pretraining", step=4, shift=3.0)
  _save(store, earlier, LoopState(_ROWS))
  fresh = _state("pretraining")
  for path in (tmp_path, tmp_path / "checkpoints" / "4"):
    _assert_same(start(fresh, initial_checkpoint=path), earlier.params)
  # One component from there, the other fresh.
  mixed = start(fresh, initial_reader=tmp_path)
  _assert_same(mixed["reader"], earlier.params["reader"])
  _assert_same(mixed["retriever"], fresh.params["retriever"])


def test_another_vocabulary_of_the_same_size_is_refused(store, tmp_path, start):
  earlier = _state(shift=3.0)
  _save(store, earlier, LoopState(_ROWS))
  with pytest.raises(CheckpointError, match="another vocabulary"):
    start(_state(), initial_checkpoint=tmp_path, vocabulary="cd" * 32)
  # A component that the stage before lacks starts afresh.
  fresh = _state("pretraining")
  loaded = start(fresh, initial_checkpoint=tmp_path)
  _assert_same(loaded["retriever"], earlier.params["retriever"])
  _assert_same(loaded["reader"], fresh.params["reader"])
  # Unless it was asked for.
  with pytest.raises(CheckpointError, match="INITIAL_READER"):
    start(fresh, initial_reader=tmp_path)


def test_a_run_that_has_only_begun_is_held_to_its_start(
  store, tmp_path, tmp_path_factory
):
  source = tmp_path_factory.mktemp("source")
  before = CheckpointStore(source)
  _save(before, _state(shift=1.0), LoopState(_ROWS))
  before.close()
  sources = CheckpointConfig(initial_checkpoint=source)
  _save(store, *_restore(store, _state(), sources=sources))
  _restore(store, _state(), sources=sources)
  # Another checkpoint meanwhile, under the same name.
  shutil.rmtree(source)
  before = CheckpointStore(source)
  _save(before, _state(shift=2.0), LoopState(_ROWS))
  before.close()
  with pytest.raises(CheckpointError, match=f"remove {tmp_path}, or choose"):
    _restore(store, _state(), sources=sources)
