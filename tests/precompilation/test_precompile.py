"""A recipe's programs, compiled for a slice that need not exist."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from realm_jax.corpus.store import Corpus
from realm_jax.precompilation import run, topology
from realm_jax.precompilation.programs.program import EMBEDDING, STEP
from realm_jax.training.config import RollingRefreshConfig
from tests import tiny_world
from tests.precompilation.tiny_recipe import recipe

_LIBRARY = Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so"
_needs_libtpu = pytest.mark.skipif(
  not _LIBRARY.is_file(), reason="`make env` has not installed libtpu"
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
  for name in (*topology._ENVIRONMENT, "TPU_LIBRARY_PATH"):
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)


@pytest.mark.slow
@_needs_libtpu
def test_a_recipe_is_compiled_for_a_slice_from_nothing_but_itself(
  tmp_path, project_dir, command_environment
):
  command = [
    *(sys.executable, "-m", "realm_jax.precompile"),
    "--gin_file=gin/runs/pretrain.gin",
    "--gin_file=tests/integration/tiny.gin",
    "--gin.BATCH_SIZE=8",
    "--gin.FSDP=2",
    # BERT's vocabulary would take most of the compilation.
    "--gin.bert.BertConfig.vocab_size=64",
    # Sizes of the attention kernel.
    "--gin.bert.BertConfig.hidden_size=128",
    "--gin.bert.BertConfig.dropout_rate=0.1",
    "--gin.QUERY_LENGTH=16",
    "--gin.BLOCK_LENGTH=32",
    "--gin.JOINT_LENGTH=48",
    "--topology=v5e:2x2",
    "--num_blocks=1000",
    f"--cache_dir={tmp_path / 'cache'}",
    f"--json={tmp_path / 'one.json'}",
  ]
  done = subprocess.run(
    command,
    cwd=project_dir,
    env=command_environment,
    capture_output=True,
    text=True,
    timeout=400,
  )
  assert done.returncode == 0, done.stderr
  assert "It fits." in done.stdout
  figures = json.loads((tmp_path / "one.json").read_text())
  assert figures["fits"] is True
  assert figures["chips"] == 4
  assert 0 < figures["utilisation"] < 1
  kernels = {kernel["name"] for kernel in figures["kernels"]}
  assert kernels == {"attention_forward", "attention_backward"}
  for name in (
    *("argument_bytes", "temporary_bytes", "hbm_bytes", "flops_per_chip"),
    "estimated_step_seconds",
  ):
    assert figures[name] > 0, name
  # Data parallelism sums gradients; fully sharded, parameters are gathered.
  assert all(c["bytes"] > 0 for c in figures["collectives"])
  assert {"data", "fsdp"} <= {
    axis for c in figures["collectives"] for axis in c["axis"].split("×")
  }
  names = {"builder_chips", "seconds", "trainer_steps"}
  assert figures["refresh"].keys() >= names
  kinds = [program["kind"] for program in figures["programs"]]
  assert kinds == ["training step", "search", "embedding"]
  # What the compiler said of each is kept.
  assert len(list((tmp_path / "cache").iterdir())) == len(kinds)


@_needs_libtpu
def test_lengths_of_a_corpus_choose_buckets_and_useful_tokens(world):
  chips = topology.open_topology("v5e:2x2", library=_LIBRARY)
  padded = recipe(64)
  assert padded.train is not None
  data = dataclasses.replace(
    padded.train.data,
    query_length=tiny_world.QUERY_LENGTH,
    block_length=tiny_world.BLOCK_LENGTH,
  )
  train = dataclasses.replace(
    padded.train,
    data=data,
    retriever=tiny_world.RETRIEVER,
    reader=tiny_world.READER,
  )
  padded = dataclasses.replace(padded, train=train)
  real = dataclasses.replace(padded, corpus=Corpus.open(world.corpus_dir))
  (step, *_), (usual, *_) = (
    [p for p in run.programs_of(r, chips) if p.kind == STEP]
    for r in (padded, real)
  )
  assert usual.work.tokens < step.work.tokens
  assert usual.work.flops < step.work.flops
  # All blocks are embedded, whichever batch they are in.
  embedded = sum(
    program.runs * program.arguments[1].shape[0]
    for program in run.programs_of(real, chips)
    if program.kind == EMBEDDING
  )
  assert embedded == pytest.approx(real.num_blocks)


@_needs_libtpu
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_step_that_retrieves_is_one_program(share):
  chips = topology.open_topology("v5e:2x2", library=_LIBRARY)
  refresh = RollingRefreshConfig(share=share)
  made = list(
    run.programs_of(
      recipe(8, retrieve_on_device=True, rolling_refresh=refresh), chips
    )
  )
  step = made[0]
  step.trace()
  # Without a builder, nothing else embeds blocks.
  kinds = [STEP] if share else [STEP, EMBEDDING]
  assert [program.kind for program in made] == kinds
  assert (step.round_steps is None) == (share == 0)
  plain = next(run.programs_of(recipe(8), chips))
  assert (step.work.flops > plain.work.flops) == (share > 0)


@_needs_libtpu
def test_a_batch_that_the_mesh_does_not_divide():
  chips = topology.open_topology("v5e:2x2", library=_LIBRARY)
  with pytest.raises(ValueError, match="BATCH_SIZE"):
    run.precompile(recipe(6), chips, cache=None)


@_needs_libtpu
def test_the_cores_of_a_v4_chip_are_one_device():
  chips = topology.open_topology("v4:2x2x1", library=_LIBRARY)
  assert len(chips.devices) == 4
  assert np.isclose(chips.chip.clock, 1.05e9, rtol=0.01)


@pytest.mark.parametrize("name", ["v9:2x2", "v5e", "v5e:8", "h100:8x8"])
def test_a_topology_that_is_none_names_those_that_are(name: str):
  with pytest.raises(
    topology.TopologyError, match=r"v4, v5e, v5p, v6e.*v5e:8x8"
  ):
    topology.open_topology(name, library=_LIBRARY)


@_needs_libtpu
def test_a_slice_that_libtpu_does_not_have():
  with pytest.raises(topology.TopologyError, match="libtpu knows no slice"):
    topology.open_topology("v5e:3x5", library=_LIBRARY)


def test_without_libtpu_the_error_says_how_to_get_it(tmp_path, monkeypatch):
  with pytest.raises(
    topology.TopologyError, match=r"make env.*TPU_LIBRARY_PATH"
  ):
    topology.open_topology("v5e:2x2", library=tmp_path / "libtpu.so")
  monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "other.so"))
  with pytest.raises(topology.TopologyError, match=r"other\.so"):
    topology.open_topology("v5e:2x2", library=_LIBRARY)
