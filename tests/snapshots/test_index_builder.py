"""The index builder's loop, with builds that only publish."""

from unittest import mock

import pytest

from realm_jax.checkpoints.store import (
  CheckpointError,
  UnreadableCheckpointError,
)
from realm_jax.indexes.protocol import (
  CONFIGS,
  IndexLoadError,
  RecallError,
  config_from,
)
from realm_jax.indexes.random import RandomConfig
from realm_jax.snapshots import index_builder
from realm_jax.snapshots.index_builder import index_of_run
from realm_jax.snapshots.manifest import Manifest
from realm_jax.snapshots.store import SnapshotStore
from realm_jax.storage.local_disk import DiskFullError
from tests.snapshots.builds import StopAfterWaits, save, snapshot_config
from tests.snapshots.conftest import files_of, flip, publish_one


@pytest.fixture
def run(tmp_path, corpus, monkeypatch):
  """Runs an index builder until it waits; returns what it built and published.

  Each of the `errors` is raised by building its step once, or by restoring it.
  """

  def run(*, errors=(), on_build=lambda: None, stop=None, **settings):
    errors, built = dict(errors), []

    def restore(self, choice):
      if isinstance(errors.get(choice.step), CheckpointError):
        raise errors[choice.step]
      return None, {}, None

    def build(builder, step, params, store, *, check, **others):
      built.append(step)
      on_build()
      check()
      if step in errors:
        raise errors.pop(step)
      publish_one(store.directory, corpus, step)

    monkeypatch.setattr(index_builder._IndexBuilder, "_restore", restore)
    monkeypatch.setattr(index_builder, "build_snapshot", build)
    return built, index_builder.build_index(
      model_dir=tmp_path,
      corpus_dir=corpus.source,
      snapshot=snapshot_config(),
      builder=index_builder.IndexBuilderConfig(**settings),
      stop=stop or StopAfterWaits(),
    )

  return run


@pytest.fixture
def saved(tmp_path, corpus):
  return lambda *steps, **settings: save(tmp_path, corpus, *steps, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
  "settings, published",
  [
    ({"mode": "newest"}, [1000]),
    ({"mode": "every"}, [0, 500, 1000]),
    ({"mode": "every", "refresh_every_steps": 1000}, [0, 1000]),
    # Whoever asks for one snapshot gets the newest.
    ({"once": True, "refresh_every_steps": 2000}, [1000]),
  ],
)
def test_a_mode_says_which_checkpoints_are_built_from(
  run, saved, settings, published
):
  saved(0, 500, 1000)
  assert run(**settings)[1] == published
  # What is published is not built again.
  assert run(**settings)[1] == []


def test_a_full_disk_is_waited_for_but_not_with_once(run, saved):
  saved(0)
  stop = StopAfterWaits(2)
  built, published = run(
    stop=stop, errors={0: DiskFullError("full")}, retry_seconds=7.0
  )
  assert (built, published) == ([0, 0], [0])
  assert stop.timeouts[0] == 7.0
  saved(500)
  with pytest.raises(DiskFullError):
    run(errors={500: DiskFullError("full")}, once=True)


def test_a_poor_recall_skips_a_checkpoint_unless_a_trainer_waits_for_it(
  run, saved
):
  saved(0)
  errors = {0: RecallError("too low")}
  stop = StopAfterWaits(3, actions=[lambda: None, lambda: saved(500)])
  built, published = run(stop=stop, errors=errors)
  assert (built, published) == ([0, 500], [500])
  saved(1000)
  for settings in ({"mode": "every"}, {"once": True}):
    errors = {step: RecallError("too low") for step in (0, 1000)}
    with pytest.raises(RecallError):
      run(errors=errors, stop=StopAfterWaits(2), **settings)


def test_an_unreadable_checkpoint_is_skipped_unless_it_is_the_newest(
  run, saved
):
  saved(0, 500)
  errors = {0: UnreadableCheckpointError("half removed")}
  stop = StopAfterWaits(6)
  assert run(errors=errors, mode="every", stop=stop)[1] == [500]
  saved(1000)
  errors = {1000: UnreadableCheckpointError("damaged")}
  with pytest.raises(UnreadableCheckpointError):
    run(errors=errors, stop=StopAfterWaits(6))


def test_a_signal_ends_it_in_the_midst_of_a_build(run, saved):
  saved(0, 500)
  stop = StopAfterWaits()
  built, published = run(mode="every", stop=stop, on_build=stop.set)
  assert (built, published) == ([0], [])


def test_no_snapshot_is_removed_while_a_checkpoint_cannot_be_read(
  run, saved, tmp_path, corpus
):
  publish_one(tmp_path / "snapshots", corpus, 0)
  saved(0, 500)
  loop = tmp_path / "checkpoints" / "0" / "loop"
  away = loop.rename(tmp_path / "away")
  loop.mkdir()
  assert run(keep_snapshots=1)[1] == [500]
  store = SnapshotStore(tmp_path / "snapshots")
  assert store.steps() == [0, 500]
  loop.rmdir()
  away.rename(loop)
  saved(1000)
  assert run(keep_snapshots=1)[1] == [1000]
  assert store.steps() == [1000]


def test_it_waits_for_checkpoints_and_keeps_what_the_newest_one_uses(
  run, saved, tmp_path
):
  stop = StopAfterWaits(
    4,
    actions=[
      lambda: saved(0, 500, keep=1),
      # 500's checkpoint goes, but 1000's names its snapshot.
      lambda: saved(1000, snapshots=[500], keep=1),
      lambda: saved(1500, snapshots=[1000], keep=1),
    ],
  )
  published = run(mode="every", keep_snapshots=1, stop=stop)[1]
  assert published == [0, 500, 1000, 1500]
  store = SnapshotStore(tmp_path / "snapshots")
  assert store.steps() == [0, 1000, 1500]


def test_reported_damage_is_repaired(run, saved, tmp_path):
  saved(0)
  snapshots_dir = tmp_path / "snapshots"

  def damage():
    flip(next(files_of(snapshots_dir, 0).glob("embeddings-*.npy")))
    SnapshotStore(snapshots_dir).mark_damaged(0)

  built, _ = run(stop=StopAfterWaits(2, actions=[damage]))
  assert built == [0, 0]


def test_an_index_of_a_kind_of_ones_own_is_found_by_its_name(
  tmp_path, corpus, monkeypatch
):
  own = {"index_kind": "mine", "index_parameters": {"seed": 7}}
  publish_one(tmp_path / "snapshots", corpus, 0, **own)
  configs = {kind: config_from(kind, {}) for kind in CONFIGS}

  def found():
    return index_of_run(model_dir=tmp_path, **configs)

  with pytest.raises(IndexLoadError, match="no index is called 'mine'"):
    found()
  kind = "realm_jax.indexes.random", "RandomConfig"
  monkeypatch.setitem(CONFIGS, "mine", kind)
  assert found() == RandomConfig(seed=7)


def test_a_snapshot_that_nothing_can_load_keeps_no_better_one_back(
  run, saved, tmp_path, corpus
):
  fingerprint = {"corpus_fingerprint": "0" * 64}
  publish_one(tmp_path / "snapshots", corpus, 0, **fingerprint)
  saved(500)
  assert run(publish_if_better=True)[1] == [500]


def test_an_idle_builder_reads_a_manifest_once(run, saved, monkeypatch):
  saved(0)
  read = mock.Mock(side_effect=Manifest.from_json)
  monkeypatch.setattr(Manifest, "from_json", read)
  assert run(stop=StopAfterWaits(9))[1] == [0]
  assert read.call_count == 1
