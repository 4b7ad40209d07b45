"""Ablations as their recipes configure them, and what their plans train."""

from pathlib import Path

from experiments.ablation.plan import chosen_ablation
from experiments.ablation.rows import select
from realm_jax import configuration

OUT = Path("out")


def configured(name: str, *bindings: str):
  """The ablation of a recipe in experiments/gin."""
  recipe = f"experiments/gin/{name}/ablation.gin"
  parsed = configuration.parsed(chosen_ablation, [recipe], bindings)
  return parsed.build(chosen_ablation)


def plans(config, *names, seeds=(0,), folder=OUT):
  """The plans of rows by name or part, each made when it is asked for."""
  return config.plans(select(names, config.all_rows()), seeds, folder)


def planned(config, *names, **settings):
  """The last of these plans, after others that were only listed."""
  return [*plans(config, *names, **settings)][-1]


def steps(plan, seed=0):
  """The steps of a seed, by their names."""
  of_seed = plan.folder / f"seed-{seed}"
  return {
    str(folder.relative_to(of_seed)): step
    for folder, (step, _) in plan.uses.items()
    if folder.is_relative_to(of_seed)
  }
