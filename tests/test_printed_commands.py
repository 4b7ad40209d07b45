"""The recipe of every command that README.md and docs/ print is whole.

That their flags exist is shown in `test_commands.py`.
"""

import pkgutil

import pytest
from absl import flags as absl_flags

from realm_jax import configuration
from realm_jax.launch.jobs import (
  define,
  gin_error,
  name_of,
  plan,
  split_bindings,
)
from tests.printed_commands import T5X, PrintedCommand, printed

_LAUNCHER = "realm_jax.launch.xm_launch"
_COMMANDS = list(printed())
_OF_LAUNCHER = [c for c in _COMMANDS if c.module == _LAUNCHER]
# What commands configure, and their own recipes over which they read a run's.
_CONFIGURES = {
  "experiments.ablation": ("experiments.ablation.plan:chosen_ablation", ""),
  "realm_jax.ask": ("realm_jax.evaluation.run:RunConfig", "gin/runs/ask.gin"),
  "realm_jax.build_index": (
    "realm_jax.snapshots.index_builder:build_index",
    "gin/runs/build_index.gin",
  ),
  "realm_jax.evaluate": (
    "realm_jax.evaluation.evaluate:evaluate",
    "gin/runs/eval_masked.gin",
  ),
  "realm_jax.explain": (
    "realm_jax.evaluation.run:RunConfig",
    "gin/runs/explain.gin",
  ),
  "realm_jax.export_weights": (
    "realm_jax.weights.exporting:export_weights",
    "",
  ),
  "realm_jax.precompile": ("realm_jax.training.config:TrainConfig", ""),
  "realm_jax.train": (
    "realm_jax.training.config:TrainConfig",
    "gin/runs/pretrain.gin",
  ),
}
# What such commands give themselves.
_GIVEN = {"realm_jax.export_weights": {"output_dir": "out", "to": "vectors"}}
# The model file that a run keeps, or an import writes.
_MODEL = "gin/models/bert_base.gin"


def _configured(command: PrintedCommand) -> tuple[str, list[str]]:
  """What a command configures, and from which recipes."""
  function, recipe = _CONFIGURES.get(command.module, ("", ""))
  files = command.values("--gin_file=")
  if files := [_MODEL if f.startswith("runs/") else f for f in files]:
    # What only looks at a recipe needs no data.
    if command.module == "realm_jax.precompile" or "gin_help" in command.flags:
      files.append("gin/runs/precompile.gin")
    return function, files
  # It names a run alone.
  if "--to=vectors" in command.arguments:
    function = "realm_jax.weights.exporting:export_vectors"
  if "QUESTIONS" in "".join(command.bindings):
    recipe = "gin/runs/eval.gin"
  if "--follow" in command.arguments:
    function = "realm_jax.evaluation.evaluate:follow"
  return function, [recipe] if recipe else []


@pytest.mark.parametrize(
  "command",
  [
    c
    for c in _COMMANDS
    if c.module not in (_LAUNCHER, T5X)
    and not c.is_abridged
    and (
      c.values("--gin_file=")
      or (c.module in _CONFIGURES and c.values("--model_dir="))
    )
  ],
  ids=str,
)
def test_the_recipe_of_a_command_is_complete(command, tmp_path):
  function, files = _configured(command)
  begins = command.module == "realm_jax.train" and command.values("--gin_file=")
  # Others than a trainer with a recipe find what a run keeps.
  if command.values("--model_dir=") and not begins:
    kept = tmp_path / "kept.gin"
    kept.write_text(f'include "{_MODEL}"\nCORPUS_DIR = "corpus"\n')
    files.insert(0, str(kept))
  arguments = dict(_GIVEN.get(command.module, {}))
  if function.endswith(":export_vectors"):
    del arguments["to"]
  configuration.parsed(
    pkgutil.resolve_name(function) if function else None,
    files,
    command.bindings,
    arguments=arguments,
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "command",
  [c for c in _OF_LAUNCHER if c.values("--gin_file=") and not c.is_abridged],
  ids=str,
)
def test_a_launch_could_start(command):
  others, bindings = split_bindings(["xm_launch", *command.arguments])
  given = absl_flags.FlagValues()
  define(given)
  assert given(others) == ["xm_launch"]
  assert name_of(given)
  jobs = plan(given, bindings)
  errors = [gin_error(job) for job in jobs]
  assert errors == [None] * len(jobs)
