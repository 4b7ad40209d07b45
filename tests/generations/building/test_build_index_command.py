"""`python -m realm_jax.build_index`, as a user types it."""

import subprocess
import sys

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.runs.jobs import Job, free_port, wait_until
from realm_jax import configuration
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.generations.building import run as building
from realm_jax.generations.follow.loading import load_newest
from realm_jax.models.retriever import Retriever

pytestmark = pytest.mark.slow

_FILES = ["gin/models/tiny.gin", "gin/runs/build_index.gin"]


@pytest.fixture
def command(tmp_path, corpus):
  """Returns the command with flags and bindings of its own."""

  def words(*flags, **bindings):
    given = {
      "MODEL_DIR": str(tmp_path),
      "CORPUS_DIR": str(corpus.source),
      **bindings,
    }
    return [
      *(sys.executable, "-m", "realm_jax.build_index", *flags),
      *(f"--gin_file={file}" for file in _FILES),
      *(f"--gin.{name}={value!r}" for name, value in given.items()),
    ]

  return words


@pytest.fixture
def build_index(command, project_dir, command_environment):
  """Runs the command to its end."""

  def run(*flags, **bindings):
    return subprocess.run(
      command(*flags, **bindings),
      cwd=project_dir,
      env=command_environment,
      capture_output=True,
      text=True,
      timeout=180,
    )

  return run


def _save_checkpoint(model_dir, corpus):
  bindings = [f"MODEL_DIR = {str(model_dir)!r}", "CORPUS_DIR = ''"]
  with configuration.parsed(building.build_index, _FILES, bindings):
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


@pytest.mark.slow
def test_once_publishes_a_generation_and_exits(build_index, tmp_path, corpus):
  _save_checkpoint(tmp_path, corpus)
  partial = "--gin.REFRESH=%PARTIAL"
  done = build_index("--once", partial, TOKENS_PER_BATCH=4096)
  assert done.returncode == 0, done.stderr
  assert "embeds every block: there is no earlier generation" in done.stderr
  assert "published generation 0: 150 blocks" in done.stderr
  generation = load_newest(tmp_path / "generations", corpus=corpus)
  assert generation.index.kind == "scann"
  assert generation.manifest.recall["8"] == 1.0


def test_processes_share_a_generation_and_stop_together(
  command, tmp_path, corpus, command_environment
):
  _save_checkpoint(tmp_path, corpus)
  address = f"localhost:{free_port()}"
  group = [
    Job(
      f"builder {index}",
      command(
        f"--coordinator_address={address}",
        "--num_processes=2",
        f"--process_id={index}",
        TOKENS_PER_BATCH=4096,
      ),
      log=tmp_path / f"{index}.log",
      environment=command_environment,
    )
    for index in range(2)
  ]
  try:
    for process in group:
      process.start()
    for process in group:
      wait_until(
        lambda process=process: "waiting for the next" in process.last_output(),
        what="builder that waits",
        jobs=tuple(group),
      )
    assert group[1].terminate() == 0
    wait_until(group[0].ended, what="end of the group", jobs=())
  finally:
    for process in group:
      process.stop()
  logs = "".join(process.log.read_text() for process in group)
  assert logs.count("published generation 0: 150 blocks") == 1
