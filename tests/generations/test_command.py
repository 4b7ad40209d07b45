"""`python -m realm_jax.build_index`, as a user types it."""

import sys

import pytest

from benchmarks.runs.jobs import (
  Job,
  JobError,
  Macro,
  as_gin,
  free_port,
  wait_until,
)
from realm_jax.generations.store import GenerationStore
from tests.generations.builds import save

pytestmark = pytest.mark.slow

_FILES = ["gin/models/tiny.gin", "gin/runs/build_index.gin"]


def test_processes_share_a_generation_are_killed_and_stop_together(
  tmp_path, corpus, command_environment, quick_jobs
):
  save(tmp_path, corpus, 0)
  store = GenerationStore(tmp_path / "generations")

  given = {
    "MODEL_DIR": str(tmp_path),
    "CORPUS_DIR": str(corpus.source),
    "TOKENS_PER_BATCH": 4096,
    "SHARD_BLOCKS": 3,
    "INDEX": Macro("EXACT"),
    # The retriever of the checkpoints that `builds` saves.
    "bert.BertConfig.hidden_size": 16,
    "bert.BertConfig.num_layers": 1,
    "bert.BertConfig.intermediate_size": 32,
    "bert.BertConfig.max_positions": 64,
    "retriever.Retriever.projection_size": 8,
    "retriever.Retriever.shared_towers": False,
  }

  def group():
    command = [
      *(sys.executable, "-m", "realm_jax.build_index"),
      *(f"--gin_file={file}" for file in _FILES),
      *(f"--gin.{name}={as_gin(value)}" for name, value in given.items()),
      f"--coordinator_address=localhost:{free_port()}",
      "--num_processes=2",
      "--heartbeat_timeout_seconds=10",
    ]
    return [
      Job(
        f"builder {index}",
        [*command, f"--process_id={index}"],
        log=tmp_path / f"{index}.log",
        environment=command_environment,
      )
      for index in range(2)
    ]

  def shards():
    records = store.path(0).glob("*/embeddings-*.json")
    return [int(path.name.split("-")[1]) for path in records]

  first, second = group(), group()
  try:
    for process in first:
      process.start()
    wait_until(
      lambda: any(shard % 2 for shard in shards()),
      what="shards of both processes",
      jobs=tuple(first),
    )
    first[1].kill()
    with pytest.raises(JobError):
      wait_until(first[0].ended, what="end of the other process", jobs=())
    assert store.steps() == []
    for process in second:
      process.start()
    wait_until(
      lambda: "waiting for the next" in second[0].last_output(),
      what="builder that waits",
      jobs=tuple(second),
    )
    assert second[1].terminate() == 0
    wait_until(second[0].ended, what="end of the group", jobs=())
  finally:
    for process in (*first, *second):
      process.stop()
  assert "published generation 0: 150 blocks" in second[0].log.read_text()
  assert store.verify(0).recall["8"] == 1.0
