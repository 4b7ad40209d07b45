"""A recipe's programs, compiled for a slice that need not exist."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from realm_jax.inputs.config import DataConfig
from realm_jax.precompilation import run, topology
from realm_jax.training.config import MeshConfig, TrainConfig
from realm_jax.training.optimizer import OptimizerConfig
from tests.training import tiny

_LIBRARY = Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so"
_needs_libtpu = pytest.mark.skipif(
  not _LIBRARY.is_file(), reason="`make env` has not installed libtpu"
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
  for name in (*topology._ENVIRONMENT, "TPU_LIBRARY_PATH"):
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)


def recipe(batch_size: int, **settings) -> run.Recipe:
  retriever, reader = tiny.models()
  return run.Recipe(
    TrainConfig(
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
    ),
    num_blocks=1000,
  )


@pytest.mark.slow
@_needs_libtpu
def test_a_recipe_is_compiled_for_a_slice_from_nothing_but_itself(tmp_path):
  chips = topology.open_topology("v5e:2x2", library=_LIBRARY)
  tiny_recipe = recipe(8, mesh=MeshConfig(fsdp=2))
  report = run.precompile(tiny_recipe, chips, cache=tmp_path)
  figures = json.loads(json.dumps(report.json()))
  assert figures["fits"] is True
  assert figures["chips"] == 4
  assert 0 < figures["utilisation"] < 1
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
  assert figures["refresh"].keys() >= {
    "builder_chips",
    "seconds",
    "trainer_steps",
  }
  assert [p["kind"] for p in figures["programs"]] == [
    *("training step", "search", "embedding"),
  ]
  assert "It fits." in report.text()
  # Nothing is compiled twice.
  again = run.precompile(tiny_recipe, chips, cache=tmp_path)
  assert again.json() == report.json()


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
