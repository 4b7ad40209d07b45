"""Ablations as their recipes configure them, and what their plans train."""

from pathlib import Path

from experiments.ablation.plan import chosen_ablation
from experiments.ablation.rows import select
from realm_jax import configuration

OUT = Path("out")


def configured(name: str, *bindings: str):
  """The ablation of a recipe in experiments/gin."""
  recipe = f"experiments/gin/{name}/ablation.gin"
  found = configuration.parsed(chosen_ablation, [recipe], bindings)
  return found.build(chosen_ablation)


def planned(config, *names, seeds=(0,), folder=OUT, execute=lambda plan: False):
  """The plan of rows by name or part."""
  rows = select(names, config.all_rows())
  return config.conduct(rows, seeds, folder, execute)


def steps(plan, seed=0):
  """The steps of a seed, by their names."""
  of_seed = plan.folder / f"seed-{seed}"
  return {
    str(folder.relative_to(of_seed)): step
    for folder, (step, _) in plan.uses.items()
    if folder.is_relative_to(of_seed)
  }


def settings_of(step):
  """What the command of a step configures."""
  return step.command.build()
