"""Checkpoints: item by item, bit for bit, into any layout."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness.object_store import StoreFault
from realm_jax.checkpoints.store import (
  CheckpointError,
  CheckpointNotWrittenError,
  CheckpointStore,
)
from tests.full_disk import full_disk


def _items(seed=0, width=8):
  rng = np.random.default_rng(seed)

  def draw(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  return {
    "retriever": {"tower": {"kernel": draw(4, width), "bias": draw(width)}},
    "reader": {"kernel": draw(width, width)},
    "optimizer": ({"mean": draw(4, width)}, {"step": jnp.int32(seed)}),
    "loop": {
      "position": np.int64(2**40 + seed),
      "rows": rng.integers(0, 99, (3, 2)).astype(np.int32),
    },
  }


def _assert_same_bits(one, two):
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


@pytest.fixture
def store(tmp_path):
  with contextlib.closing(CheckpointStore(tmp_path)) as store:
    yield store


@pytest.fixture
def reader(tmp_path):
  with contextlib.closing(CheckpointStore(tmp_path)) as reader:
    yield reader


def _save(store, step, items):
  store.save(step, items)
  store.wait()


def test_a_reader_that_is_open_sees_the_latest_and_step_0(tmp_path, reader):
  assert reader.steps() == []
  with contextlib.closing(CheckpointStore(tmp_path, keep=2)) as store:
    for step in (0, 5, 10, 15):
      items = {"reader": _items(step)["reader"]}
      _save(store, step, items)
      assert reader.latest() == step
      _assert_same_bits(reader.restore(step, items=("reader",)), items)
    assert store.steps() == reader.steps() == [0, 10, 15]


def test_what_a_kill_left_half_written_does_not_exist(store, reader):
  _save(store, 2, _items())
  half = store.directory / "7.orbax-checkpoint-tmp-1"
  (half / "retriever").mkdir(parents=True)
  (half / "retriever" / "_METADATA").write_text("{")
  assert reader.steps() == [2]
  # The trainer's successor neither sees it nor stumbles over it.
  with contextlib.closing(CheckpointStore(store.directory.parent)) as successor:
    assert successor.latest() == 2
    _save(successor, 7, _items(7))
    assert successor.steps() == [2, 7]


def test_a_checkpoint_that_is_removed_meanwhile_cannot_be_read(
  store, monkeypatch
):
  monkeypatch.setattr(store, "steps", lambda: [7])
  for read in (store.components, store.loop_item):
    with pytest.raises(CheckpointError, match="being removed"):
      read(7)


def test_a_file_that_is_cut_is_an_error_or_is_not_needed(
  store, reader, tmp_path
):
  # One array: orbax would leave the reads of others unfinished.
  _save(store, 2, {"retriever": {"kernel": jnp.arange(256.0)}})
  refused = 0
  for path in sorted((tmp_path / "checkpoints" / "2").rglob("*")):
    if path.is_dir() or not (content := path.read_bytes()):
      continue
    for remains in (content[: len(content) // 2], None):
      path.unlink()
      if remains is not None:
        path.write_bytes(remains)
      try:
        reader.stored(2, "retriever")
        found = reader.restore(2, items=("retriever",))["retriever"]["kernel"]
      except CheckpointError:
        refused += 1
      else:
        np.testing.assert_array_equal(found, np.arange(256.0))
    path.write_bytes(content)
  assert refused > 2


# Of the writes that orbax abandons once one of them has failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_save_that_fails_leaves_no_checkpoint_and_a_later_one_is_written(
  store, reader, tmp_path
):
  _save(store, 0, _items(0))
  with full_disk():
    for number in (1, 2):
      store.save(number, _items(width=256))
      with pytest.raises(CheckpointNotWrittenError, match=str(tmp_path)):
        store.wait()
      with pytest.raises(CheckpointNotWrittenError):
        store.check()
      assert store.failures == number
  assert reader.steps() == [0]
  _save(store, 3, _items(3))
  store.check()
  assert store.failures == 0
  assert reader.steps() == [0, 3]
  _assert_same_bits(
    reader.restore(3, items=("loop",))["loop"], _items(3)["loop"]
  )


def test_a_folder_that_is_away_fails_a_save_and_not_the_next(store, reader):
  _save(store, 0, _items(0))
  away = store.directory.rename(store.directory.with_name("away"))
  store.directory.write_text("no folder")
  store.save(4, _items(1))
  with pytest.raises(CheckpointNotWrittenError):
    store.wait()
  store.directory.unlink()
  away.rename(store.directory)
  _save(store, 5, _items(2))
  assert reader.steps() == [0, 5]


@pytest.mark.slow
def test_a_store_that_is_away_for_a_while_delays_a_save(object_store, caplog):
  run = object_store.path("delayed")
  items = _items()
  object_store.inject(StoreFault("refuse", "checkpoints", times=4))
  with contextlib.closing(CheckpointStore(run)) as store:
    _save(store, 0, items)
  assert object_store.happened() == [4]
  object_store.inject()
  with contextlib.closing(CheckpointStore(run)) as reader:
    _assert_same_bits(reader.restore(0, items=("loop",))["loop"], items["loop"])
