"""A recipe's programs, compiled for a slice that need not exist."""

import dataclasses
import json
import sys
from typing import Any

import pytest

from realm_jax.generations.build import GenerationConfig
from realm_jax.indexes.exact import ExactConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.precompilation import topology
from realm_jax.precompilation.programs import (
  EMBEDDING,
  SEARCH,
  STEP,
  Cost,
  Report,
  advice,
  compile_recipe,
  needed_temporaries,
)
from realm_jax.precompilation.topology import Topology
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
  retriever, reader = tiny.models()
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
    **settings,
  )


def _slice(memory_bytes: int) -> Topology:
  """Eight chips without devices, of a TFLOP and a gigabyte in a second."""
  devices: Any = (None,) * 8
  return Topology("v5e:2x4", devices, memory_bytes, 1e12, 1e9)


def _cost(kind: str, arguments: int, temporaries: int) -> Cost:
  """A cost of so many GiB of arguments and temporaries."""
  return Cost(
    kind=kind,
    name="",
    fits=True,
    argument_bytes=arguments * _GIB,
    temporary_bytes=temporaries * _GIB,
  )


@pytest.mark.slow
@_needs_libtpu
def test_a_recipe_is_compiled_for_a_slice_from_nothing_but_itself(
  tmp_path, command_server
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
    f"--json={tmp_path / 'one.json'}",
  ]
  done = command_server.run(command)
  assert done.returncode == 0, done.stderr
  assert "It fits." in done.stdout
  figures = json.loads((tmp_path / "one.json").read_text())
  assert figures["fits"] is True
  assert figures["chips"] == 4
  step, search = figures["programs"]
  assert (step["kind"], search["kind"]) == (STEP, SEARCH)
  for name in ("argument_bytes", "temporary_bytes", "flops", "accessed_bytes"):
    assert step[name] > 0, name
  # The peaks of a v5e: 197 TFLOP/s and 819 GB/s.
  bounds = step["flops"] / 197e12, step["accessed_bytes"] / 819e9
  assert step["least_seconds"] == pytest.approx(max(bounds))


@pytest.mark.slow
@_needs_libtpu
def test_a_step_that_retrieves_is_one_program():
  recipe = _recipe(
    8,
    retrieve_on_device=True,
    refresh=RefreshConfig(blocks_per_step=8),
  )
  slice_ = topology.open_topology("v5e:2x2")
  report = compile_recipe(recipe, slice_, num_blocks=1000)
  assert [cost.kind for cost in report.costs] == [STEP]
  assert report.fits


@pytest.mark.slow
@_needs_libtpu
def test_a_builder_s_recipe_is_its_embedding():
  retriever, _ = tiny.models()
  bert = dataclasses.replace(retriever.bert, max_positions=512)
  recipe = GenerationConfig(retriever.clone(bert=bert), ExactConfig())
  slice_ = topology.open_topology("v5e:2x2")
  (cost,) = compile_recipe(recipe, slice_, num_blocks=1000).costs
  assert cost.kind == EMBEDDING
  assert cost.fits
  assert cost.flops


@pytest.mark.parametrize(
  ("vectors", "fits"), [(2, True), (4, False)], ids=["fits", "does not"]
)
def test_a_step_has_to_fit_beside_the_vectors(vectors, fits):
  costs = [_cost(STEP, 3, 4), _cost(SEARCH, vectors, 1)]
  report = Report(_slice(10 * _GIB), costs)
  assert report.fits is fits
  assert report.json()["fits"] is fits
  assert ("It fits." in report.text()) is fits


def test_settings_that_divide_what_a_step_takes():
  found = "\n".join(advice(_recipe(64), _slice(_GIB)))
  for setting in ("bfloat16", "FSDP = 2 ", "MICROBATCHES = 2 ", "SIZE = 32"):
    assert setting in found
  # Eight chips have nothing to divide in a batch of eight.
  assert "SIZE" not in "\n".join(advice(_recipe(8), _slice(_GIB)))


@pytest.mark.parametrize(
  ("message", "temporaries"),
  [
    (
      "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required "
      "for HLO temporaries (1.5T) exceeds available HBM (15.75G).",
      int(1.5 * 2**40),
    ),
    (
      "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.00G "
      "of 15.75G hbm. Exceeded hbm capacity by 2.25G.",
      15 * _GIB,
    ),
    ("INTERNAL: something else", None),
  ],
)
def test_what_libtpu_says_of_a_program_that_does_not_fit(message, temporaries):
  assert needed_temporaries(message, 3 * _GIB) == temporaries


@pytest.mark.parametrize(
  "name",
  [
    *("h100:8x8", "v5e", "v6e:8x8x8", "v5p:4x4"),
    pytest.param("v5e:3x5", marks=_needs_libtpu),
  ],
)
def test_a_topology_that_is_none_names_one_that_is(name: str):
  generation = name.partition(":")[0]
  example = {"v6e": "v6e:8x8", "v5p": "v5p:4x4x4"}.get(generation, "v5e:8x8")
  with pytest.raises(ValueError, match=example):
    topology.open_topology(name)
