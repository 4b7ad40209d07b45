"""The command explain, with its flags, in this process."""

import json

import pytest
from absl import app, flags
from absl.testing import flagsaver

from realm_jax import explain as command
from realm_jax.configuration import command_line, configured, parsed_for_run
from realm_jax.evaluation.explain import block_use
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning import cpu_tuning

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

command_line.define_run_flags()


@pytest.fixture
def explain(monkeypatch):
  """`explain(model_dir, text, **flags)` runs the command on a run."""
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
  flags.FLAGS.mark_as_parsed()

  def run(model_dir, *texts, **given):
    with flagsaver.flagsaver(
      model_dir=str(model_dir), gin_bindings=["NUM_CANDIDATES = 6"], **given
    ):
      command.main(["explain", *texts])

  return run


def test_what_is_printed_and_written(explain, recorded_run, tmp_path, capsys):
  explain(
    recorded_run("pretrain"),
    "Later Ada [MASK] the bridge.",
    answer="built",
    json=str(tmp_path / "found.json"),
    num_texts=1,
  )
  text = capsys.readouterr().out
  (found,) = json.loads((tmp_path / "found.json").read_text())["explanations"]
  assert (found["answer"], found["answer_is_given"]) == ("built", True)
  assert len(found["candidates"]) == 6
  assert "y = 'built' (given; wordpieces: built)" in text
  for one in found["candidates"]:
    assert f"{one['share']:.4f}" in text
    assert f"{one['reward']:+.4f}" in text
  first, second = (one["block"] for one in found["candidates"][1:3])
  shown = " ".join(text.split())
  assert first["text"] in shown
  assert second["text"] not in shown


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
  ("texts", "given"),
  [
    (["in [MASK]"], {"block_use": True}),
    ([], {"answer": "a"}),
    ([], {"answer": "a", "block_use": True}),
  ],
)
def test_flags_that_do_not_go_together(explain, tmp_path, texts, given):
  with pytest.raises(app.UsageError, match="sentence"):
    explain(tmp_path, *texts, **given)
