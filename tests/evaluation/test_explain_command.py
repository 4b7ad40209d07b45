"""The command explain, with its flags, in this process."""

import functools
import importlib
import json

import pytest
from absl import app, flags
from absl.testing import flagsaver

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.configuration import (
  ConfigurationError,
  command_line,
  configured,
  parsed_for_run,
)
from realm_jax.evaluation.block_use import block_use
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning import cpu_tuning

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture(scope="module")
def own_flags():
  """The command's flags, in a registry of their own, and its module.

  Other commands have flags of the same names in the registry of this process.
  """
  command_line.define_run_flags()
  registry = flags.FlagValues()
  with pytest.MonkeyPatch.context() as patch:
    for name in ("string", "multi_string", "bool", "integer"):
      name = f"DEFINE_{name}"
      define = functools.partial(getattr(flags, name), flag_values=registry)
      patch.setattr(flags, name, define)
    yield registry, importlib.import_module("realm_jax.explain")


@pytest.fixture
def explain(own_flags, monkeypatch):
  """`explain(model_dir, *arguments)` runs the command on a run."""
  registry, module = own_flags
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
  # The flags that commands share are this process's.
  flags.FLAGS.mark_as_parsed()

  def run(model_dir, *arguments):
    registry.unparse_flags()
    for name in registry:
      registry[name].unparse()
    with flagsaver.flagsaver(
      model_dir=str(model_dir), gin_bindings=["NUM_CANDIDATES = 6"]
    ):
      module.main(registry(["explain", *arguments]))

  return run


def test_a_sentence_beside_a_baseline(explain, recorded_run, tmp_path, capsys):
  baseline = recorded_run("reading")
  explain(
    recorded_run("pretrain"),
    "Later Ada [MASK] the bridge.",
    "--answer=built",
    f"--baseline={baseline}",
    f"--json={tmp_path / 'found.json'}",
    "--num_texts=1",
  )
  text = capsys.readouterr().out
  (found,) = json.loads((tmp_path / "found.json").read_text())["explanations"]
  assert (found["answer"], found["answer_is_given"]) == ("built", True)
  assert len(found["candidates"]) == 6
  assert "y = 'built' (given; wordpieces: built)" in text
  for one in found["candidates"]:
    assert f"{one['share']:.4f}" in text
    assert f"{one['reward']:+.4f}" in text
  # The baseline is the same checkpoint, of which only the reader is asked.
  assert found["unaided"]["model_dir"] == str(baseline)
  assert f"p(y|x) by {baseline}" in text
  assert len(found["unaided"]["fillings"]) == 5
  first, second = (one["block"] for one in found["candidates"][1:3])
  shown = " ".join(text.split())
  assert first["text"] in shown
  assert second["text"] not in shown


def test_a_baseline_has_a_model_of_its_own(explain, recorded_run):
  run, baseline = recorded_run("pretrain"), recorded_run("reading")
  record = baseline / "model.gin"
  text = record.read_text()
  # Its checkpoint is not of this model, which is the baseline's alone.
  record.write_text(text + "\nbert.BertConfig.intermediate_size = 5\n")
  with pytest.raises(CheckpointError, match=r"model wants \(5,"):
    explain(run, "in [MASK]", f"--baseline={baseline}")
  # What is given overrides what it has recorded, or takes its place.
  given = (f"--baseline={baseline}", "--baseline_gin_file=gin/models/tiny.gin")
  with pytest.raises(CheckpointError, match=r"model wants \(128,"):
    explain(run, "in [MASK]", *given)
  record.unlink()
  with pytest.raises(CheckpointError, match=r"model wants \(128,"):
    explain(run, "in [MASK]", *given)
  with pytest.raises(ConfigurationError, match="--baseline_gin_file"):
    explain(run, "in [MASK]", f"--baseline={baseline}")


@pytest.mark.parametrize("task", [None, "another"])
def test_training_sentences_are_those_of_the_run(recorded_run, task):
  run = recorded_run("pretrain")
  if task is not None:
    kept = run / "model.gin"
    kept.write_text(f"{kept.read_text()}\nTRAINING_TASK = {task!r}\n")
  with parsed_for_run(block_use, run, recipe="gin/runs/explain.gin"):
    data = configured(DataConfig)()
  assert (data.task, data.seed) == (task or "masked_salient_spans", 1000003)


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    (("in [MASK]", "--block_use"), "--block_use is for no sentence"),
    (("--answer=a",), "--answer is for one sentence"),
    (("--block_use", "--answer=a"), "--answer is for a sentence"),
    (("--block_use", "--baseline=a"), "--baseline is for a sentence"),
  ],
)
def test_flags_that_do_not_go_together(explain, tmp_path, arguments, said):
  with pytest.raises(app.UsageError, match=said):
    explain(tmp_path, *arguments)
