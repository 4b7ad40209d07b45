"""Sidecars as processes: killed, with a full disk, and sharing the work."""

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
from realm_jax.generations.follow.loading import load_generation
from realm_jax.generations.follow.watcher import GenerationWatcher
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.indexes.exact import ExactConfig
from tests.generations.builds import save

pytestmark = pytest.mark.slow


def _until(condition, seconds=120):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline, "waited in vain"
    time.sleep(0.02)


INDEXES = {
  "exact": ExactConfig(),
  "scann": fixed_tree(
    8,
    num_leaves_searched=8,
    num_reordered=100,
    reordering="float32",
  ),
}


_SIDECAR = """
import dataclasses
import sys
from absl import logging
from tests.generations import builds
from tests.generations.building import test_sidecar_processes
from realm_jax.corpus.store import Corpus
logging.set_verbosity(logging.INFO)
logging.use_absl_handler()
published = builds.build(
  sys.argv[1], Corpus.open(sys.argv[2]), once=False, mode=sys.argv[3],
  keep_generations=1,
  retry_seconds=0.05,
  index=test_sidecar_processes.INDEXES[sys.argv[5]],
  worker=sys.argv[6],
  config=dataclasses.replace(
    builds.CONFIG, shard_blocks=int(sys.argv[4])
  ),
)
print("published", published, flush=True)
"""


def _start(
  model_dir,
  corpus,
  mode,
  environment,
  *,
  shard_blocks=1 << 18,
  index="exact",
  worker="0/1",
):
  given = [model_dir, corpus.source, mode, str(shard_blocks), index, worker]
  return subprocess.Popen(
    [sys.executable, "-c", _SIDECAR, *given],
    cwd=Path(__file__).parents[3],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env=environment,
    text=True,
  )


def test_a_sidecar_waits_follows_and_stops_when_told(
  tmp_path, corpus, command_environment
):
  generations_dir = tmp_path / "generations"
  process = _start(tmp_path, corpus, "every", command_environment)
  lines = []
  reader = threading.Thread(target=lambda: lines.extend(process.stderr))
  reader.start()
  try:
    _until(lambda: any("no checkpoint yet" in line for line in lines))
    save(tmp_path, corpus, 0, 500, keep=1)
    _until(lambda: layout.published_steps(generations_dir) == [0, 500])
    save(tmp_path, corpus, 1000, generation=500, keep=1)
    # 500's checkpoint is gone, but 1000's names its generation.
    _until(lambda: layout.published_steps(generations_dir) == [0, 500, 1000])
    save(tmp_path, corpus, 1500, generation=1000, keep=1)
    _until(lambda: layout.published_steps(generations_dir) == [0, 1000, 1500])
  finally:
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    reader.join()
  assert process.returncode == 0
  assert "published [0, 500, 1000, 1500]" in output


def _files(generations_dir, step):
  manifest = manifests.read(layout.path_of(generations_dir, step))
  return manifest.files, manifest.embeddings


def test_two_workers_share_a_generation_and_each_is_killed_at_one(
  tmp_path, corpus, command_environment
):
  save(tmp_path, corpus, 0)
  generations_dir = tmp_path / "generations"

  def start(worker):
    return _start(
      tmp_path,
      corpus,
      "every",
      command_environment,
      shard_blocks=4,
      worker=worker,
    )

  def records(step):
    return {
      int(path.name.split("-")[1])
      for path in generations_dir.glob(f"{step:08d}/*/*.json")
    }

  jobs = [start("0/2"), start("1/2")]
  try:
    _until(lambda: layout.published_steps(generations_dir) == [0])
    # Without the second worker, the first one waits for the odd shards.
    jobs[1].kill()
    save(tmp_path, corpus, 500)
    _until(lambda: records(500) == set(range(0, 38, 2)))
    jobs[1].communicate()
    jobs[1] = start("1/2")
    _until(lambda: layout.published_steps(generations_dir) == [0, 500])
    together = _files(generations_dir, 500)
    assert len(together[1]) == 38
    # Without the first one nothing begins; it continues what is there.
    jobs[0].kill()
    jobs[0].communicate()
    save(tmp_path, corpus, 1000)
    jobs[0] = start("0/2")
    _until(lambda: layout.published_steps(generations_dir)[-1] == 1000)
  finally:
    for job in jobs:
      job.kill()
      job.communicate()
  # One that works alone makes the same bytes.
  (generations_dir / "00000500").rename(tmp_path / "aside")
  alone = _start(tmp_path, corpus, "every", command_environment, shard_blocks=4)
  try:
    _until(lambda: 500 in layout.published_steps(generations_dir))
    assert _files(generations_dir, 500) == together
  finally:
    alone.kill()
    alone.communicate()


def _flip(path):
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)


def test_a_disk_fills_up_at_any_file_and_has_room_again(
  tmp_path, corpus, command_environment
):
  generations_dir = tmp_path / "generations"
  save(tmp_path, corpus, 0)
  # Of modules that it compiles, only the beginning might be written.
  environment = command_environment | {"PYTHONDONTWRITEBYTECODE": "1"}
  process = _start(tmp_path, corpus, "every", environment, index="scann")
  lines = []
  reader = threading.Thread(target=lambda: lines.extend(process.stderr))
  reader.start()

  def limit(size):
    # As from a full disk, the process gets an error at a file above it.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, -1))

  try:
    _until(lambda: layout.published_steps(generations_dir) == [0])
    before, _ = _files(generations_dir, 0)
    sizes = sorted({file.size for file in before})
    limit(sizes[0] - 1)
    save(tmp_path, corpus, 500)
    for size in sizes[:-1]:
      limit(size)
      del lines[:]
      _until(lambda: any("00000500 was not written" in s for s in lines))
      assert process.poll() is None
    assert _files(generations_dir, 0)[0] == before
    load_generation(generations_dir, 0, corpus=corpus)
    limit(-1)
    _until(lambda: layout.published_steps(generations_dir) == [0, 500])
    load_generation(generations_dir, 500, corpus=corpus)
    # What a reader finds damaged, of the size that it had, is made again.
    (dataset,) = generations_dir.glob("00000500/*/scann/dataset.npy")
    _flip(dataset)
    load = functools.partial(load_generation, generations_dir, corpus=corpus)
    with GenerationWatcher(generations_dir, load) as watcher:
      _until(lambda: watcher.newest() is not None)
      _until(lambda: watcher.newest().step == 500)
  finally:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    reader.join()
  assert process.returncode == 0
