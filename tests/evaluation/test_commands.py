"""The commands, as a user types them: evaluate and ask."""

import json
import subprocess
import sys

import pytest

from realm_jax import ask, configuration
from realm_jax.evaluation import run as evaluation_run
from tests import tiny_world

pytestmark = pytest.mark.slow

_MODEL = "gin/models/tiny.gin"


def _bindings(world, model_dir, **more) -> list[str]:
  given = {
    "MODEL_DIR": str(model_dir),
    "CORPUS_DIR": str(world.corpus_dir),
    **more,
  }
  return [
    *tiny_world.GIN_BINDINGS,
    *(f"{name} = {value!r}" for name, value in given.items()),
  ]


def _command(module: str, recipe: str, bindings: list[str], *more: str):
  flags = [
    f"--gin.{name}={value}"
    for name, _, value in (binding.partition(" = ") for binding in bindings)
  ]
  files = [f"--gin_file={_MODEL}", f"--gin_file=gin/runs/{recipe}.gin"]
  return [sys.executable, "-m", f"realm_jax.{module}", *files, *flags, *more]


@pytest.mark.parametrize(
  ("recipe", "more", "figure"),
  [
    ("eval_retrieval", ("QUESTIONS",), "recall_at_5"),
    ("eval_masked", (), "masked_accuracy_null"),
  ],
)
def test_a_recipe_chooses_what_is_measured(
  world, model_dir, tmp_path, recipe, more, figure
):
  given = {"OUTPUT_DIR": str(tmp_path), "BATCH_SIZE": 8}
  given |= {name: str(world.question_file) for name in more}
  if recipe == "eval_masked":
    given["NUM_BATCHES"] = 1
  files = [_MODEL, f"gin/runs/{recipe}.gin"]
  with configuration.parsed(files, _bindings(world, model_dir, **given)):
    result = configuration.configured(evaluation_run.evaluate)()
  assert 0 <= result[figure] <= 1
  assert json.loads((tmp_path / "metrics.json").read_text()) == result


def test_evaluate_prints_a_table_and_writes_json(
  world, model_dir, evaluated, tmp_path, project_dir, command_environment
):
  bindings = _bindings(
    world,
    model_dir,
    QUESTIONS=str(world.question_file),
    OUTPUT_DIR=str(tmp_path / "out"),
  )
  command = _command("evaluate", "eval", bindings)
  done = subprocess.run(
    [*command, f"--json={tmp_path / 'figures.json'}"],
    cwd=project_dir,
    env=command_environment,
    capture_output=True,
    text=True,
    check=True,
  )
  figures = json.loads((tmp_path / "figures.json").read_text())
  written = json.loads((tmp_path / "out" / "metrics.json").read_text())
  assert figures == written
  # One device finds what eight did.
  for name in ("exact_match", "f1", "recall_at_1", "mrr"):
    assert figures[name] == pytest.approx(evaluated[0][name])
  printed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
  assert printed["recall_at_5"] == f"{figures['recall_at_5']:.4f}"
  assert printed.keys() == figures.keys()


def test_ask_answers_each_line_of_its_input(
  world, model_dir, evaluated, project_dir, command_environment
):
  lines = evaluated[1][:2]
  command = _command("ask", "ask", _bindings(world, model_dir))
  done = subprocess.run(
    command,
    cwd=project_dir,
    env=command_environment,
    input="".join(line["question"] + "\n" for line in lines),
    capture_output=True,
    text=True,
    check=True,
  )
  for line in lines:
    assert f"1. {line['prediction']}" in done.stdout
    assert f"«{line['prediction']}»" in " ".join(done.stdout.split())
    assert f"[block {line['answer']['block']}, rank " in done.stdout
  assert done.stderr == ""


def test_the_answer_is_marked_where_it_stands():
  body = "Zoë was born in Mirá. She left Mirá."
  start = body.encode().index("Mirá".encode())
  marked = ask.highlighted(body, start, start + len("Mirá".encode()))
  assert marked == "Zoë was born in \ue000Mirá\ue001. She left Mirá."
