"""What stands is not made again."""

import pytest

from realm_jax.ablation.data import GivenData
from realm_jax.ablation.execution import execute, is_finished
from realm_jax.ablation.runs import Plan, Run
from realm_jax.stage_commands import StageCommand


@pytest.fixture
def evaluations(tmp_path, world):
  """Two evaluations with their figures, and `call()`, which makes them."""
  questions = tmp_path / "questions.jsonl"
  questions.write_text("{}\n")
  runs = []
  for name in ("answers", "zero_shot"):
    folder = tmp_path / "seed-0" / name
    command = StageCommand(
      "evaluate",
      ["gin/experiments/demo/eval.gin"],
      {
        "MODEL_DIR": "none",
        "CORPUS_DIR": str(world.corpus_dir),
        "QUESTIONS": str(questions),
        "OUTPUT_DIR": str(folder),
      },
    )
    runs.append(Run(0, name, folder, command, ()))
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text("{}")
  data = GivenData(world.corpus_dir, questions, questions)

  def call():
    plan = Plan(runs, {}, frozenset())
    execute(plan, data=data, output_dir=tmp_path)

  return runs, call


def test_what_has_its_figures_is_not_evaluated_again(evaluations):
  runs, call = evaluations
  assert all(map(is_finished, runs))
  call()
  assert not [path for run in runs for path in run.folder.glob("*.log")]


def test_a_training_run_is_finished_with_its_last_checkpoint(tmp_path):
  command = StageCommand("train", [], {})
  run = Run(0, "realm", tmp_path / "realm", command, (), num_steps=4)
  assert not is_finished(run)
