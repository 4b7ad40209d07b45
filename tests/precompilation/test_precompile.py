"""A recipe's programs, compiled for a slice that need not exist."""

import dataclasses
import functools
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from realm_jax.indexes.exact import ExactConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.precompilation import topology
from realm_jax.precompilation.programs import (
  EMBEDDING,
  SEARCH,
  STEP,
  Cost,
  Report,
  compile_recipe,
  product_flops,
)
from realm_jax.precompilation.topology import Topology
from realm_jax.snapshots.build import SnapshotConfig
from realm_jax.training.config import RefreshConfig, TrainConfig
from realm_jax.training.optimizer import OptimizerConfig
from tests.training import tiny

_GIB = 2**30
_needs_libtpu = pytest.mark.skipif(
  not topology.LIBRARY.is_file(), reason="`make env` has not installed libtpu"
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
  for name in (*topology._ENVIRONMENT, "TPU_LIBRARY_PATH"):
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)


def _recipe(batch_size: int, **settings) -> TrainConfig:
  """Pre-training of a tiny model, with other settings of the run."""
  components = tiny.components()
  retriever, reader = components.retriever, components.reader
  return TrainConfig(
    model_dir="(not given)",
    data=DataConfig(
      corpus_dir="(not given)",
      task="inverse_cloze",
      batch_size=batch_size,
      query_length=tiny.QUERY,
      block_length=tiny.BLOCK,
    ),
    stage=tiny.OF_STAGE["pretraining"],
    retriever=retriever,
    reader=reader,
    optimizer=OptimizerConfig(learning_rate=1e-4),
    num_steps=10,
    max_shape_buckets=1,
    **settings,
  )


# Eight chips without devices, of 10 GiB each.
_CHIPS: Any = (None,) * 8
_SLICE = Topology("v5e:2x4", _CHIPS, 10 * _GIB, 1e12, 1e9)


@pytest.mark.slow
@_needs_libtpu
def test_a_recipe_is_compiled_for_a_slice_from_nothing_but_itself(
  tmp_path, command_server
):
  command = [
    *(sys.executable, "-m", "realm_jax.precompile"),
    "--gin_file=gin/runs/inverse_cloze.gin",
    "--gin_file=tests/integration/tiny.gin",
    "--gin.BATCH_SIZE=16",
    # It searches for them.
    "--gin.NUM_HARD_NEGATIVES=2",
    "--gin.MAX_SHAPE_BUCKETS=2",
    "--gin.FSDP=2",
    "--gin.bert.BertConfig.vocab_size=64",
    "--topology=v5e:2x2",
    "--num_blocks=1000",
    f"--json={tmp_path / 'one.json'}",
  ]
  done = command_server.run(command)
  assert done.returncode == 0, done.stderr
  assert "It fits." in done.stdout
  metrics = json.loads((tmp_path / "one.json").read_text())
  assert metrics["chips"] == 4
  step, search = metrics["programs"]
  assert (step["kind"], search["kind"]) == (STEP, SEARCH)
  # It is the step that trains, which packs sequences.
  assert "and packed in" in step["name"]
  for name in ("argument_bytes", "temporary_bytes", "flops", "accessed_bytes"):
    assert step[name] > 0, name
  # The peaks of a v5e: 197 TFLOP/s and 819 GB/s.
  bounds = step["flops"] / 197e12, step["accessed_bytes"] / 819e9
  assert step["least_seconds"] == pytest.approx(max(bounds))


@pytest.mark.slow
@_needs_libtpu
def test_a_step_that_retrieves_and_an_embedding_are_one_program_each():
  retriever = tiny.components().retriever
  bert = dataclasses.replace(retriever.bert, max_positions=512)
  recipes = {
    STEP: _recipe(
      8, retrieve_on_device=True, refresh=RefreshConfig(blocks_per_step=8)
    ),
    EMBEDDING: SnapshotConfig(retriever.clone(bert=bert), ExactConfig()),
  }
  slice_ = topology.open_topology("v5e:2x2")
  for kind, recipe in recipes.items():
    report = compile_recipe(recipe, slice_, num_blocks=1000)
    (cost,) = report.costs
    assert cost.kind == kind
    assert report.fits
    assert cost.flops


def test_layers_of_a_scan_count_each():
  def layers(x, kernels):
    return jax.lax.scan(lambda x, kernel: (x @ kernel, None), x, kernels)[0]

  traced = jax.jit(layers).trace(jnp.ones((8, 4)), jnp.ones((5, 4, 4)))
  assert product_flops(traced.jaxpr) == 5 * 2 * 8 * 4 * 4


@pytest.mark.parametrize(("vectors_gib", "fits"), [(2, True), (4, False)])
def test_a_step_has_to_fit_beside_the_vectors(vectors_gib, fits):
  cost = functools.partial(Cost, name="", fits=True, temporary_bytes=_GIB)
  costs = [
    cost(kind=STEP, argument_bytes=6 * _GIB),
    cost(kind=SEARCH, argument_bytes=vectors_gib * _GIB),
  ]
  report = Report(_SLICE, costs)
  assert report.fits is fits
  assert ("It fits." in report.text()) is fits
