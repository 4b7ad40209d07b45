"""Ablations as their recipes configure them, and what their plans train."""

from experiments.ablation.plan import chosen_ablation
from realm_jax import configuration


def configured(name: str, *bindings: str):
  """The ablation of a recipe in experiments/gin."""
  recipe = f"experiments/gin/{name}/ablation.gin"
  found = configuration.parsed(chosen_ablation, [recipe], bindings)
  return found.build(chosen_ablation)


def steps(plan, seed=0):
  """The steps of a seed, by the names of their runs."""
  return {run.step.name: run.step for run in plan.runs if run.seed == seed}


def settings_of(step):
  """What the command of a step configures."""
  return step.command.build()
