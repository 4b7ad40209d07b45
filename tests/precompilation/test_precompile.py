"""A recipe's programs, compiled for a slice that need not exist."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from realm_jax.inputs.config import DataConfig
from realm_jax.precompilation import topology
from realm_jax.precompilation.advice import advice
from realm_jax.precompilation.chips import CHIPS
from realm_jax.precompilation.compiler import Compiled, needed_temporaries
from realm_jax.precompilation.programs import SEARCH, STEP, programs_of
from realm_jax.training.config import RollingRefreshConfig, TrainConfig
from realm_jax.training.optimizer import OptimizerConfig
from tests.training import tiny

_LIBRARY = Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so"
_GIB = 2**30
_needs_libtpu = pytest.mark.skipif(
  not _LIBRARY.is_file(), reason="`make env` has not installed libtpu"
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
  step, search = figures["programs"]
  assert (step["kind"], search["kind"]) == (STEP, SEARCH)
  for name in ("argument_bytes", "temporary_bytes", "flops", "accessed_bytes"):
    assert step[name] > 0, name
  chip = CHIPS["v5e"]
  assert step["least_seconds"] == pytest.approx(
    max(
      step["flops"] / chip.peak_flops,
      step["accessed_bytes"] / chip.memory_bandwidth,
    )
  )
  # What the compiler said of each is kept.
  assert len(list((tmp_path / "cache").iterdir())) == 2


@_needs_libtpu
@pytest.mark.parametrize("blocks_per_step", [0, 8])
def test_a_step_that_retrieves_is_one_program(blocks_per_step):
  slice_ = topology.open_topology("v5e:2x2", library=_LIBRARY)
  recipe = _recipe(
    8,
    retrieve_on_device=True,
    rolling_refresh=RollingRefreshConfig(blocks_per_step=blocks_per_step),
  )
  (step,) = programs_of(recipe, slice_, num_blocks=1000)
  assert step.kind == STEP
  step.lower()


@_needs_libtpu
def test_a_batch_that_the_mesh_does_not_divide():
  slice_ = topology.open_topology("v5e:2x2", library=_LIBRARY)
  with pytest.raises(ValueError, match="BATCH_SIZE"):
    list(programs_of(_recipe(6), slice_, num_blocks=1000))


@pytest.mark.parametrize(
  ("arguments", "temporaries", "helps", "does_not"),
  [
    # 3 GiB remain; temporaries in bfloat16, or of a smaller batch, are less.
    (3, 16, ["bfloat16", "11.0 GiB", "BATCH_SIZE = 48"], "FSDP"),
    (14, 4, ["FSDP = 2 ", "11.0 GiB"], "FSDP = 4"),
  ],
)
def test_what_would_make_a_step_fit(arguments, temporaries, helps, does_not):
  compiled = Compiled(arguments * _GIB, 0, temporaries * _GIB, 0)
  found = "\n".join(advice(_recipe(64), compiled, CHIPS["v5e"], chips=8))
  assert all(text in found for text in helps)
  assert does_not not in found


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
    *("v9:2x2", "v5e", "v5e:8", "h100:8x8", "v6e:8x8x8", "v5p:4x4"),
    pytest.param("v5e:3x5", marks=_needs_libtpu),
  ],
)
def test_a_topology_that_is_none_names_one_that_is(name: str):
  generation = name.partition(":")[0]
  example = {"v6e": "v6e:8x8", "v5p": "v5p:4x4x4"}.get(generation, "v5e:8x8")
  with pytest.raises(topology.TopologyError, match=example):
    topology.open_topology(name, library=_LIBRARY)


def test_without_libtpu_the_error_says_how_to_get_it(tmp_path, monkeypatch):
  with pytest.raises(
    topology.TopologyError, match=r"make env.*TPU_LIBRARY_PATH"
  ):
    topology.open_topology("v5e:2x2", library=tmp_path / "libtpu.so")
  monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "other.so"))
  with pytest.raises(topology.TopologyError, match=r"other\.so"):
    topology.open_topology("v5e:2x2", library=_LIBRARY)
