"""A run continues exactly from its last checkpoint, and starts from others."""

import contextlib
import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from realm_jax.checkpoints.store import CheckpointError, CheckpointStore
from realm_jax.corpus.update import update_corpus
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning.mesh import MESH_AXES, make_mesh
from realm_jax.training.checkpointing import (
  Checkpointer,
  LoopState,
  RetrievedIds,
  RunIdentity,
  StepRecord,
  examples_of_run,
)
from realm_jax.training.compiled_steps import set_up
from realm_jax.training.config import CheckpointConfig, TrainConfig
from realm_jax.training.optimizer import OptimizerConfig, make_optimizer
from realm_jax.training.search_in_step import NO_BLOCK, RollingIndexState
from realm_jax.training.stages.open_qa import OpenQa
from tests import tiny_world
from tests.json_lines import write_lines
from tests.models.test_lora import LORA
from tests.training import tiny

pytestmark = pytest.mark.slow

IDENTITY = RunIdentity(
  seed=5,
  batch_size=8,
  num_searched=2,
  save_every_steps=10,
  held_out_blocks=0,
  lag_steps=5,
  steps_ahead=1,
  vocabulary="ab" * 32,
  corpus_version=3,
  corpus_fingerprint="cd" * 32,
  searched_blocks=20,
)
_ROWS = np.arange(IDENTITY["batch_size"])
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1.0), num_steps=10)


@functools.cache
def _drawn(stage, fsdp, model_parallelism):
  mesh = make_mesh(fsdp=fsdp, model_parallelism=model_parallelism)
  return tiny.state(stage, OPTIMIZER, mesh)[0]


def _state(stage="inverse_cloze", *, shift=0.0, fsdp=1, model_parallelism=1):
  """A state whose every value, and its step, is higher by a shift.

  That of inverse cloze, which has no reader, has half as many arrays.
  """
  return jax.tree.map(
    lambda x: jax.device_put(np.asarray(x) + x.dtype.type(shift), x.sharding),
    _drawn(stage, fsdp, model_parallelism),
  )


@pytest.fixture
def store(tmp_path):
  store = CheckpointStore(tmp_path)
  yield store
  store.close()


def _save(store, state, loop_state=None):
  checkpoints = Checkpointer(store, IDENTITY, CheckpointConfig())
  checkpoints.save(state, loop_state or LoopState(_ROWS))
  store.wait()


def _restore(store, state, *, sources=None, **changes):
  """What a run begins with: the state and the loop's."""
  identity = RunIdentity(**{**IDENTITY, **changes})
  config = sources or CheckpointConfig()
  return Checkpointer(store, identity, config).initialize_or_restore(state)


@pytest.fixture
def start(tmp_path_factory):
  """`start(state, initial_checkpoint=…)`: the parameters of a new run."""

  def started(state, *, vocabulary=IDENTITY["vocabulary"], **sources):
    config = CheckpointConfig(**sources)
    with contextlib.closing(
      CheckpointStore(tmp_path_factory.mktemp("new"))
    ) as new:
      begun, _ = _restore(new, state, sources=config, vocabulary=vocabulary)
    return begun.params

  return started


def _assert_same(one, two):
  jax.tree.map(
    np.testing.assert_array_equal, jax.device_get(one), jax.device_get(two)
  )


def _table(state):
  return state.optimizer[1].mu["reader"]["encoder"]["word_embeddings"]


def test_everything_comes_back_and_lies_where_it_should(store):
  saved = _state("pretraining", shift=2.0, fsdp=8)
  assert _table(saved).sharding.shard_shape((40, 8)) == (40, 1)
  retrieved = RetrievedIds(
    # Of 63 bits, which devices do not have.
    ids=(2**63 - 1 - np.arange(16)).reshape(8, 2),
    scores=np.linspace(-1, 3, 16, dtype=np.float32).reshape(8, 2),
  )
  others = RetrievedIds(retrieved.ids[::-1], -retrieved.scores)
  records = [StepRecord(8, retrieved), StepRecord(12, others)]
  positions = 2**40 + 8 * np.arange(8)[::-1] + np.arange(8)
  _save(store, saved, LoopState(positions, tuple(records)))
  # The successor may be laid out otherwise.
  fresh = _state("pretraining", fsdp=2, model_parallelism=2)
  state, loop = _restore(store, fresh)
  _assert_same(state, saved)
  assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
    lambda x: x.sharding, fresh
  )
  assert _table(state).sharding.shard_shape((40, 8)) == (20, 4)
  np.testing.assert_array_equal(loop.positions, positions)
  assert [one.snapshot for one in loop.next_steps] == [8, 12]
  for found, saved in zip(loop.next_steps, records, strict=True):
    jax.tree.map(
      np.testing.assert_array_equal, found.retrieved, saved.retrieved
    )


def test_rolling_vectors_come_back_on_other_devices(store):
  own = {
    "vectors": np.arange(128).reshape(32, 4).astype(jnp.bfloat16),
    "steps": np.array([*range(20), *12 * [NO_BLOCK]], np.int32),
  }
  divided = PartitionSpec(MESH_AXES)
  placed = jax.device_put(own, NamedSharding(make_mesh(), divided))
  state = _state()._replace(index=RollingIndexState(**placed))
  _save(store, state, LoopState(_ROWS, indexed_corpus="cd" * 32))
  checkpoints = Checkpointer(store, IDENTITY, CheckpointConfig())
  there = NamedSharding(make_mesh(devices=jax.devices()[:4]), divided)

  def found(corpus, num_rows):
    array = functools.partial(jax.ShapeDtypeStruct, sharding=there)
    like = {
      "vectors": array((num_rows, 4), "bfloat16"),
      "steps": array((num_rows,), "int32"),
    }
    return checkpoints.rolling_vectors(0, corpus, like)

  _assert_same(found("cd" * 32, 32), own)
  # With other padding, or of another corpus, they are embedded again.
  assert found("cd" * 32, 24) is None
  assert found("ef" * 32, 32) is None


def test_a_run_with_other_settings_is_refused(store):
  _save(store, _state())
  fresh = _state()
  for other, named in (
    ({"seed": 2}, "SEED"),
    ({"num_searched": 3}, "NUM_CANDIDATES or NUM_SEARCHED"),
    ({"lag_steps": 0}, "LAG_STEPS and WAIT_FOR_SNAPSHOTS"),
    ({"vocabulary": "cd" * 32}, "--vocab"),
  ):
    with pytest.raises(CheckpointError, match=named):
      _restore(store, fresh, **other)
  with pytest.raises(CheckpointError, match="reader"):
    _restore(store, _state("pretraining"))


def test_a_run_starts_from_others(store, tmp_path, start):
  whole, towers = _state("pretraining", shift=3.0), _state(shift=4.0)
  for saved in (whole, towers):
    _save(store, saved)
  first, fresh = tmp_path / "checkpoints" / "3", _state("pretraining")
  _assert_same(start(fresh, initial_checkpoint=first), whole.params)
  # Of a MODEL_DIR it is the latest. A component that it lacks starts afresh.
  loaded = start(fresh, initial_checkpoint=tmp_path)
  _assert_same(loaded, {**fresh.params, **towers.params})
  # One component from there, the other from elsewhere.
  loaded = start(fresh, initial_checkpoint=tmp_path, initial_reader=first)
  _assert_same(loaded, {**whole.params, **towers.params})
  for sources, named in (
    ({"initial_reader": tmp_path}, "INITIAL_READER"),
    # Of the same size.
    ({"initial_reader": first, "vocabulary": "cd" * 32}, "another vocabulary"),
  ):
    with pytest.raises(CheckpointError, match=named):
      start(fresh, **sources)


def test_a_component_starts_with_the_encoder_of_a_reader(
  store, tmp_path, start
):
  saved = _state("pretraining", shift=1.0)
  _save(store, saved)
  own = jax.device_put(tiny.parameters("reranking")["reranker"])
  fresh = saved._replace(params={"reranker": own})
  begun = start(fresh, initial_checkpoint=tmp_path)["reranker"]
  encoder = saved.params["reader"]["encoder"]
  _assert_same(begun, {**own, "encoder": encoder})


def test_lora_starts_from_a_base_model_and_continues(store, tmp_path, start):
  mesh = make_mesh(devices=jax.devices()[:1])
  make = functools.partial(tiny.adapted_state, optimizer=OPTIMIZER, mesh=mesh)
  base, fresh = make(None, seed=0), make(LORA, seed=1)
  _save(store, base)
  begun = start(fresh, initial_checkpoint=tmp_path)
  # It computes what the base model does, bit for bit.
  old, new = (
    tiny.adapted(lora)["retriever"].apply(
      {"params": params["retriever"]}, *tiny.batch("contrastive")[:2]
    )
    for lora, params in ((None, base.params), (LORA, begun))
  )
  _assert_same(old, new)
  trained = jax.tree.map(lambda x: x + x.dtype.type(1), fresh)
  _save(store, trained)
  _assert_same(_restore(store, make(LORA))[0], trained)
  for lora in (None, dataclasses.replace(LORA, rank=3)):
    with pytest.raises(CheckpointError, match="LORA it was trained with"):
      start(make(lora), initial_checkpoint=tmp_path)


def test_a_new_run_begins_with_the_newest_version(world, tmp_path):
  corpus = shutil.copytree(world.corpus_dir, tmp_path / "corpus")
  assert examples_of_run(tmp_path / "run", corpus)[0].version == 1
  (tmp_path / "changes.jsonl").write_text('{"id": "p0", "remove": true}')
  update_corpus([str(tmp_path / "changes.jsonl")], corpus)
  assert examples_of_run(tmp_path / "run", corpus)[0].version == 2


def test_a_run_searches_as_many_blocks_as_when_it_began(world, tmp_path):
  """A small corpus is searched whole, and not by what it has become."""
  searched = shutil.copytree(world.corpus_dir, tmp_path / "corpus")
  config = TrainConfig(
    model_dir=tmp_path / "run",
    data=DataConfig(
      corpus_dir=searched,
      pretraining_corpus_dir=world.corpus_dir,
      task="open_qa",
      batch_size=8,
      query_length=tiny_world.QUERY_LENGTH,
      block_length=tiny_world.BLOCK_LENGTH,
    ),
    stage=OpenQa(),
    retriever=tiny_world.RETRIEVER,
    reader=tiny_world.READER,
    optimizer=OptimizerConfig(learning_rate=1.0),
    num_steps=10,
  )

  def update(changes):
    lines = write_lines(tmp_path / "changes.jsonl", changes)
    update_corpus([str(lines)], searched)
    return set_up(config)

  begun = set_up(config)
  with contextlib.closing(CheckpointStore(config.model_dir)) as store:
    checkpoints = Checkpointer(store, begun.identity, CheckpointConfig())
    checkpoints.save(_state(), LoopState(_ROWS))
    store.wait()
    people = tiny_world.documents()
    new = update([{**people[0], "id": "new", "title": "Another"}])
    assert new.num_blocks > begun.num_blocks == new.num_searched
    resumed = Checkpointer(store, new.identity, CheckpointConfig())
    resumed.initialize_or_restore(_state())
  with pytest.raises(ValueError, match=r"searches for .* add blocks"):
    update([{"id": person["id"], "remove": True} for person in people[:3]])
