"""A sidecar beside a full disk."""

import functools
import logging
import resource
import threading

import pytest

from benchmarks.fixed_tree import fixed_tree
from realm_jax.generations.loading import load_generation
from realm_jax.generations.store import GenerationStore
from tests.full_disk import full_disk
from tests.generations.builds import build, save
from tests.generations.conftest import until

_INDEX = fixed_tree(
  8, num_leaves_searched=8, num_reordered=100, reordering="float32"
)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_disk_fills_up_at_any_file_and_has_room_again(
  tmp_path, corpus, caplog
):
  caplog.set_level(logging.ERROR, logger="absl")
  generations_dir = tmp_path / "generations"
  store = GenerationStore(generations_dir)
  save(tmp_path, corpus, 0)
  stop = threading.Event()
  settings = {"once": False, "mode": "every", "retry_seconds": 0.05}
  sidecar = threading.Thread(
    target=functools.partial(
      build, tmp_path, corpus, index=_INDEX, stop=stop, **settings
    )
  )
  sidecar.start()
  try:
    until(lambda: store.steps() == [0])
    before = store.manifest(0).files
    sizes = sorted({file.size for file in before})
    save(tmp_path / "elsewhere", corpus, 500)
    with full_disk(sizes[0] - 1):
      saved = tmp_path / "elsewhere" / "checkpoints" / "500"
      saved.rename(tmp_path / "checkpoints" / "500")
      for size in (sizes[0] - 1, *sizes[:-1]):
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        caplog.clear()
        until(lambda: "00000500 was not written" in caplog.text)
    assert store.manifest(0).files == before
    load_generation(generations_dir, 0, corpus=corpus)
    until(lambda: store.steps() == [0, 500])
  finally:
    stop.set()
    sidecar.join()
