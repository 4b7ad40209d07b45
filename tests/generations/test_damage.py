"""A generation with every kind of file, cut, flipped and removed anywhere."""

import contextlib
import functools
import os
import shutil
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from benchmarks.fixed_tree import fixed_tree
from benchmarks.runs.jobs import searching
from realm_jax.generations.loading import load_generation
from realm_jax.generations.manifest import (
  FORMAT_VERSION,
  DamagedGenerationError,
  GenerationError,
  from_checked_json,
  to_checked_json,
)
from realm_jax.generations.store import MANIFEST, GenerationStore
from realm_jax.generations.vectors import QUERY_TOWER
from realm_jax.generations.watcher import GenerationWatcher
from realm_jax.indexes.scann.config import ScannConfig
from tests.generations.conftest import files_of, flip, publish_one, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

_SCANN = fixed_tree(
  8,
  num_leaves_searched=8,
  num_reordered=100,
  reordering="bfloat16",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpus) -> Path:
  """Generation 0, and generation 500 with every kind of file."""
  directory = tmp_path_factory.mktemp("damage") / "generations"
  publish_one(directory, corpus, 0)
  steps = np.arange(corpus.num_blocks) % 2 * 500
  publish_one(directory, corpus, 500, steps=steps, index=_SCANN)
  return directory


@pytest.fixture
def published(whole, tmp_path) -> Path:
  """A copy, to be spoilt."""
  return shutil.copytree(whole, tmp_path / "generations")


def _files(generations_dir):
  """All files that a trainer reads."""
  folder = files_of(generations_dir, 500)
  files = GenerationStore(generations_dir).manifest(500).files
  return [folder.parent / MANIFEST, *(folder / file.path for file in files)]


def test_cut_at_any_byte_it_is_refused(published, corpus):
  rng = np.random.default_rng(0)
  generation = load_generation(published, 500, corpus=corpus)
  assert (generation.index.kind, generation.oldest_step) == ("scann", 0)
  for path in _files(published):
    content = path.read_bytes()
    # A manifest without its last newline is whole.
    last = len(content) - (path.name == MANIFEST)
    for place in {0, last - 1, int(rng.integers(last))}:
      path.write_bytes(content[:place])
      with pytest.raises(DamagedGenerationError):
        load_generation(published, 500, corpus=corpus)
    path.write_bytes(content)
  assert load_generation(published, 500, corpus=corpus).step == 500


def test_a_bit_flipped_in_any_file_is_found(published, corpus):
  rng = np.random.default_rng(0)
  for path in _files(published):
    content = path.read_bytes()
    flip(path, rng.integers(len(content)))
    with pytest.raises(DamagedGenerationError):
      load_generation(published, 500, corpus=corpus)
    path.write_bytes(content)


def test_a_flipped_format_version_is_damage_and_another_is_not(published):
  path = published / "00000500" / MANIFEST
  text = path.read_text()
  wanted = f'"format_version": {FORMAT_VERSION}'
  path.write_text(text.replace(wanted, '"format_version": 6'))
  with pytest.raises(DamagedGenerationError, match="its own checksum"):
    GenerationStore(published).manifest(500)
  values = from_checked_json(text)
  path.write_text(to_checked_json({**values, "format_version": 6}))
  store = GenerationStore(published)
  with pytest.raises(GenerationError, match="format version 6") as error:
    store.manifest(500)
  assert not isinstance(error.value, DamagedGenerationError)
  assert store.remove_damaged() == []


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]"])
def test_a_builder_removes_what_has_a_damaged_manifest(published, content):
  (published / "00000500" / MANIFEST).write_bytes(content)
  store = GenerationStore(published)
  assert store.remove_damaged() == [500]
  assert store.steps() == [0]


def _watch(generations_dir, corpus):
  load = functools.partial(load_generation, generations_dir, corpus=corpus)
  watcher = GenerationWatcher(generations_dir, load, poll_seconds=0.01)
  return contextlib.closing(watcher)


@pytest.mark.parametrize(
  "name", [MANIFEST, "scann/bfloat16_dataset.npy", QUERY_TOWER]
)
def test_a_watcher_goes_on_with_the_one_before(published, corpus, name):
  path = files_of(published, 500) / name
  if name == MANIFEST:
    path = published / "00000500" / name
  content = path.read_bytes()
  path.write_bytes(content[: len(content) // 2])
  with _watch(published, corpus) as watcher:
    until(lambda: watcher.newest() is not None)
    assert watcher.newest().step == 0
  # The builder learns of it.
  assert GenerationStore(published).remove_damaged(marked=True) == [500]


def test_a_wrong_refusal_is_looked_at_again(published, corpus, monkeypatch):
  monkeypatch.setattr("realm_jax.generations.watcher._RETRY_SECONDS", 0.2)
  attempts = []

  def load(step):
    attempts.append(step)
    if len(attempts) == 1:
      raise DamagedGenerationError("read wrongly")
    return load_generation(published, step, corpus=corpus)

  with contextlib.closing(
    GenerationWatcher(published, load, poll_seconds=0.01)
  ) as watcher:
    with pytest.raises(DamagedGenerationError, match="read wrongly"):
      watcher.wait_for(500, timeout=20.0)
    until(lambda: watcher.request(500))
  assert attempts == [500, 500]


def test_what_another_process_loads_is_verified_meanwhile(published, corpus):
  flip(files_of(published, 500) / "scann" / "hashed_dataset.npy")
  with pytest.raises(DamagedGenerationError, match="hashed_dataset"):
    load_generation(published, 500, corpus=corpus, beside_training=True)
  assert not searching(os.getpid())


@pytest.mark.parametrize(
  "harm",
  [
    lambda files: shutil.rmtree(files),
    lambda files: flip(files / "scann" / "scann_config.pb", 39),
  ],
)
def test_what_goes_while_its_index_is_loaded_is_called_damaged(
  published, corpus, harm
):
  load = ScannConfig.load

  def harm_and_load(config, directory, *arguments, **settings):
    harm(files_of(published, 500))
    return load(config, directory, *arguments, **settings)

  with (
    mock.patch.object(ScannConfig, "load", harm_and_load),
    pytest.raises(DamagedGenerationError, match=r"is missing|checksum"),
  ):
    load_generation(published, 500, corpus=corpus)


def test_a_directory_may_be_removed_at_any_moment(
  published, whole, corpus, tmp_path
):
  rng = np.random.default_rng(0)
  steps = set()
  for i, delay in enumerate(rng.uniform(0, 0.05, 6)):
    removing = threading.Timer(
      delay, shutil.rmtree, (published / "00000500",), {"ignore_errors": True}
    )
    with _watch(published, corpus) as watcher:
      watcher.newest()
      removing.start()
      until(lambda watcher=watcher: watcher.newest() is not None)
      removing.join()
      newest = watcher.newest()
      # What was loaded is whole, whatever became of its files.
      assert np.isfinite(newest.vectors(np.arange(150))).all()
      steps.add(newest.step)
    aside = tmp_path / f"again-{i}"
    shutil.copytree(whole / "00000500", aside)
    # The watcher may have marked it while it was removed.
    shutil.rmtree(published / "00000500", ignore_errors=True)
    aside.rename(published / "00000500")
  assert steps <= {0, 500}
