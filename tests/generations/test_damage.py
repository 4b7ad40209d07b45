"""A generation with every kind of file, cut, flipped and removed anywhere."""

import contextlib
import functools
import shutil
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from benchmarks.fixed_tree import fixed_tree
from realm_jax.generations.loading import load_generation
from realm_jax.generations.manifest import (
  FORMAT_VERSION,
  DamagedGenerationError,
  GenerationError,
  from_checked_json,
  to_checked_json,
)
from realm_jax.generations.store import MANIFEST, GenerationStore
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
  store = GenerationStore(published)
  with pytest.raises(DamagedGenerationError, match="its own checksum"):
    store.manifest(500)
  values = from_checked_json(text)
  path.write_text(to_checked_json({**values, "format_version": 6}))
  with pytest.raises(GenerationError, match="format version 6") as error:
    store.manifest(500)
  assert not isinstance(error.value, DamagedGenerationError)
  assert store.remove_damaged() == []
  path.write_text("{")
  assert store.remove_damaged() == [500]
  assert store.steps() == [0]


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
    load = functools.partial(load_generation, published, corpus=corpus)
    watcher = GenerationWatcher(published, load, poll_seconds=0.01)
    with contextlib.closing(watcher):
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
