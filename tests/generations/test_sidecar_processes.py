"""A sidecar as a process: with a full disk, and told to stop."""

import functools
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.fixed_tree import fixed_tree
from realm_jax.generations.loading import load_generation
from realm_jax.generations.store import GenerationStore
from realm_jax.generations.watcher import GenerationWatcher
from tests.generations.builds import save
from tests.generations.conftest import flip

pytestmark = pytest.mark.slow


def _until(condition, seconds=120):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline, "waited in vain"
    time.sleep(0.02)


INDEX = fixed_tree(
  8,
  num_leaves_searched=8,
  num_reordered=100,
  reordering="float32",
)
_SIDECAR = """
import sys
from absl import logging
from tests.generations import builds
from tests.generations import test_sidecar_processes
from realm_jax.corpus.store import Corpus
logging.set_verbosity(logging.INFO)
logging.use_absl_handler()
builds.build(
  sys.argv[1], Corpus.open(sys.argv[2]), once=False, mode="every",
  keep_generations=1,
  retry_seconds=0.05,
  index=test_sidecar_processes.INDEX,
)
"""


def test_a_disk_fills_up_at_any_file_and_has_room_again(
  tmp_path, corpus, command_environment
):
  generations_dir = tmp_path / "generations"
  store = GenerationStore(generations_dir)
  save(tmp_path, corpus, 0)
  # Of modules that it compiles, only the beginning might be written.
  environment = command_environment | {"PYTHONDONTWRITEBYTECODE": "1"}
  process = subprocess.Popen(
    [sys.executable, "-c", _SIDECAR, tmp_path, corpus.source],
    cwd=Path(__file__).parents[2],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    env=environment,
    text=True,
  )
  lines = []
  reader = threading.Thread(target=lambda: lines.extend(process.stderr))
  reader.start()

  def limit(size):
    # As from a full disk, the process gets an error at a file above it.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, -1))

  try:
    _until(lambda: store.steps() == [0])
    before = store.manifest(0).files
    sizes = sorted({file.size for file in before})
    limit(sizes[0] - 1)
    save(tmp_path, corpus, 500)
    for size in sizes[:-1]:
      limit(size)
      del lines[:]
      _until(lambda: any("00000500 was not written" in s for s in lines))
      assert process.poll() is None
    assert store.manifest(0).files == before
    load_generation(generations_dir, 0, corpus=corpus)
    limit(-1)
    _until(lambda: store.steps() == [0, 500])
    load_generation(generations_dir, 500, corpus=corpus)
    # What a reader finds damaged, of the size that it had, is made again.
    (dataset,) = generations_dir.glob("00000500/*/scann/dataset.npy")
    flip(dataset)
    load = functools.partial(load_generation, generations_dir, corpus=corpus)
    with GenerationWatcher(generations_dir, load) as watcher:
      _until(lambda: watcher.newest() is not None)
      _until(lambda: watcher.newest().step == 500)
  finally:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    reader.join()
  assert process.returncode == 0
