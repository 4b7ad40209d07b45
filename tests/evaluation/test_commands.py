"""The commands evaluate and ask."""

import io
import json
import sys

import pytest
from absl import flags
from absl.testing import flagsaver

from realm_jax import ask, evaluate
from realm_jax.configuration import command_line
from realm_jax.partitioning import cpu_tuning

pytestmark = pytest.mark.slow

command_line.define_run_flags()


@pytest.fixture
def run_evaluate(tmp_path, monkeypatch, request):
  """`run_evaluate(model_dir, follow=False, **bindings)`: the command.

  Its figures are in figures.json, in the folder of the test.
  """
  request.getfixturevalue("one_device")

  def run(model_dir, *, follow=False, **bindings):
    given = {"OUTPUT_DIR": str(tmp_path), "BATCH_SIZE": 8, **bindings}
    monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(
      model_dir=str(model_dir),
      gin_bindings=[f"{name} = {value!r}" for name, value in given.items()],
      json=str(tmp_path / "figures.json"),
      follow=follow,
    ):
      evaluate.main(["evaluate"])

  return run


def test_what_is_measured_is_printed_and_written(
  world, recorded_run, evaluated, tmp_path, capsys, run_evaluate
):
  run_evaluate(
    recorded_run("open_qa"),
    QUESTIONS=str(world.question_file),
    RANK_ANSWERS_BY="best_span",
  )
  figures = json.loads((tmp_path / "figures.json").read_text())
  assert figures == json.loads((tmp_path / "metrics.json").read_text())
  # One device finds what eight did.
  for name in ("exact_match", "f1", "recall_at_1", "mrr"):
    assert figures[name] == pytest.approx(evaluated[0][name])
  lines = capsys.readouterr().out.splitlines()
  printed = dict(line.split(maxsplit=1) for line in lines)
  low, high = figures.pop("intervals")["f1"]
  assert printed["f1"] == f"{figures['f1']:.4f}  [{low:.4f}, {high:.4f}]"
  assert printed.keys() == figures.keys()


def test_a_recipe_follows_a_run(
  world, model_dir, tmp_path, capsys, keep_record, run_evaluate
):
  keep_record("open_qa", tmp_path)
  world.save_checkpoint(tmp_path, step=3, generation=0)
  run_evaluate(
    tmp_path,
    follow=True,
    GENERATION=str(model_dir / "generations"),
    QUESTIONS=str(world.question_file),
    BEST_METRIC="f1",
    FOLLOW_UNTIL_STEP=3,
  )
  figures = json.loads((tmp_path / "figures.json").read_text())
  assert figures == json.loads((tmp_path / "3" / "metrics.json").read_text())
  assert figures["checkpoint"] == 3
  assert "exact_match" in capsys.readouterr().out
  best = json.loads((tmp_path / "best.json").read_text())
  assert (best["step"], best["value"]) == (3, figures["f1"])


def test_ask_answers_each_line_of_its_input(
  recorded_run, evaluated, monkeypatch, capsys, one_device
):
  lines = evaluated[1][:2]
  questions = "".join(line["question"] + "\n" for line in lines)
  monkeypatch.setattr(sys, "stdin", io.StringIO(questions))
  monkeypatch.setattr(cpu_tuning, "keep_freed_memory", lambda: None)
  flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(
    model_dir=str(recorded_run("open_qa")),
    gin_bindings=["RANK_ANSWERS_BY = 'best_span'"],
  ):
    ask.main(["ask"])
  output = capsys.readouterr().out
  for line in lines:
    assert f"1. {line['prediction']}" in output
    assert f"«{line['prediction']}»" in " ".join(output.split())
    assert f"[block {line['answer']['block']}, rank " in output
