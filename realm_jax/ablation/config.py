"""What an ablation runs on: recipes, data and budget."""

import dataclasses
from collections.abc import Mapping, Sequence

from etils import epath

from realm_jax.ablation.data import Data
from realm_jax.settings import PositiveInt, require_valid

_NEEDED_STAGES = ("inverse_cloze", "reading", "pretraining", "open_qa")
# Reading goes on with retrieved blocks, if it has a recipe.
READING_RETRIEVED = "reading_retrieved"
TRAINED_STAGES = (*_NEEDED_STAGES, READING_RETRIEVED)
RECIPES = (*_NEEDED_STAGES, "build_index", "eval", "eval_retrieval")


class AblationError(ValueError):
  """An ablation that cannot run as it is configured."""


@dataclasses.dataclass(frozen=True)
class AblationConfig:
  """One ablation: stages, data, seeds and budget.

  Attributes:
    recipes: Gin files by stage, for each name of `RECIPES`, and for
      `reading_retrieved`, if pre-training should start from such a reader.
    data: Corpus and questions of each seed.
    num_seeds: Number of seeds; the first is 0.
    num_steps: Steps by stage, where they are not the recipe's.
    extra_gin_files: Gin files that are applied after each stage's recipe.
    initial_checkpoint: Checkpoint that inverse cloze and reading start from,
      such as an import of BERT; None starts from random weights.
  """

  recipes: Mapping[str, Sequence[str]]
  data: Data
  num_seeds: PositiveInt = 3
  num_steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
  extra_gin_files: Sequence[str] = ()
  initial_checkpoint: epath.PathLike | None = None

  def __post_init__(self) -> None:
    require_valid(self)
    if {*self.recipes} - {READING_RETRIEVED} != {*RECIPES}:
      raise AblationError(
        f"recipes={sorted(self.recipes)}; want gin files for each of "
        f"{', '.join(RECIPES)}: change RECIPES"
      )
    if unknown := [n for n in self.num_steps if n not in TRAINED_STAGES]:
      raise AblationError(
        f"num_steps of {unknown[0]!r}; the stages are "
        f"{', '.join(TRAINED_STAGES)}: change NUM_STEPS"
      )

  @property
  def reads_retrieved(self) -> bool:
    """Whether the reader reads retrieved blocks before pre-training."""
    return READING_RETRIEVED in self.recipes

  def gin_files(self, recipe: str) -> list[str]:
    """Returns the gin files of a recipe."""
    return [*self.recipes[recipe], *self.extra_gin_files]
