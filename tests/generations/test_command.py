"""`python -m realm_jax.build_index`, as a user types it."""

import sys

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.runs.jobs import (
  Job,
  JobError,
  Macro,
  as_gin,
  free_port,
  wait_until,
)
from realm_jax import configuration
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.generations import sidecar
from realm_jax.generations.store import GenerationStore
from realm_jax.models.retriever import Retriever

pytestmark = pytest.mark.slow

_SETTINGS = {"TOKENS_PER_BATCH": 4096, "SHARD_BLOCKS": 3}
_FILES = ["gin/models/tiny.gin", "gin/runs/build_index.gin"]
_SIZES = {
  "bert.BertConfig.hidden_size": 16,
  "bert.BertConfig.num_layers": 1,
  "bert.BertConfig.intermediate_size": 32,
}


def _command(model_dir, corpus, *flags, **bindings):
  given = {
    "MODEL_DIR": str(model_dir),
    "CORPUS_DIR": str(corpus.source),
    **_SIZES,
    **bindings,
  }
  return [
    *(sys.executable, "-m", "realm_jax.build_index", *flags),
    *(f"--gin_file={file}" for file in _FILES),
    *(f"--gin.{name}={as_gin(value)}" for name, value in given.items()),
  ]


def _save_checkpoint(model_dir, corpus):
  given = {"MODEL_DIR": str(model_dir), "CORPUS_DIR": "", **_SIZES}
  bindings = [f"{name} = {value!r}" for name, value in given.items()]
  with configuration.parsed(sidecar.build_index, _FILES, bindings):
    retriever = configuration.configured(Retriever)()
  retriever = retriever.for_vocabulary(
    vocab_size=corpus.vocab_size, separator_id=3
  )
  tokens = jnp.zeros((1, 4), jnp.int32)
  params = jax.jit(retriever.init)(jax.random.key(0), tokens, tokens)["params"]
  store = CheckpointStore(model_dir)
  loop = {"generation": np.int64(-1), "seed": np.int64(0)}
  store.save(0, {"retriever": flax.linen.unbox(params), "loop": loop})
  store.close()


def test_processes_share_a_generation_are_killed_and_stop_together(
  tmp_path, corpus, command_environment, quick_jobs
):
  _save_checkpoint(tmp_path, corpus)
  store = GenerationStore(tmp_path / "generations")

  def group():
    address = f"localhost:{free_port()}"
    return [
      Job(
        f"builder {index}",
        _command(
          *(tmp_path, corpus),
          f"--coordinator_address={address}",
          "--num_processes=2",
          f"--process_id={index}",
          "--heartbeat_timeout_seconds=10",
          **_SETTINGS,
          INDEX=Macro("EXACT"),
        ),
        log=tmp_path / f"{index}.log",
        environment=command_environment,
      )
      for index in range(2)
    ]

  def records():
    return {
      int(path.name.split("-")[1])
      for path in store.path(0).glob("*/embeddings-*.json")
    }

  first, second = group(), group()
  try:
    for process in first:
      process.start()
    wait_until(
      lambda: any(shard % 2 for shard in records()),
      what="shards of both processes",
      jobs=tuple(first),
    )
    first[1].kill()
    with pytest.raises(JobError):
      wait_until(first[0].ended, what="end of the other process", jobs=())
    assert store.steps() == []
    kept = {
      path: path.stat().mtime
      for path in _shards(store)
      # A shard is finished when its record, which is written last, is there.
      if path.with_suffix(".json").exists()
    }
    assert 0 < len(kept) < 50
    for process in second:
      process.start()
    wait_until(
      lambda: "waiting for the next" in second[0].last_output(),
      what="builder that waits",
      jobs=tuple(second),
    )
    # What was finished was not embedded again.
    assert {p: p.stat().mtime for p in _shards(store)}.items() >= (kept.items())
    assert second[1].terminate() == 0
    wait_until(second[0].ended, what="end of the group", jobs=())
  finally:
    for process in (*first, *second):
      process.stop()
  assert "published generation 0: 150 blocks" in second[0].log.read_text()
  assert store.verify(0).recall["8"] == 1.0


def _shards(store):
  return list(store.path(0).glob("*/embeddings-*.npy"))
