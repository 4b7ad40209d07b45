"""The names of shared runs: which rows have the same run."""

from collections.abc import Mapping

from realm_jax.ablation.commands import Commands
from realm_jax.ablation.config import READING_RETRIEVED
from realm_jax.ablation.pretraining import resolve
from realm_jax.ablation.recipes import Recipes
from realm_jax.ablation.rows import ROWS, Row
from realm_jax.stage_commands import StageCommand, Value

INVERSE_CLOZE, READING = "inverse_cloze", "reading"
BASELINE_READER = "baseline_reader"


class Names:
  """Which row each run is named for, of all rows, whichever are chosen.

  Attributes:
    pretrainings: Pre-training of each row that has one.
  """

  def __init__(self, commands: Commands, recipes: Recipes):
    self.pretrainings = {
      row.name: resolve(
        row,
        lambda bindings, row=row: recipes.train_config(
          pretraining_command(commands, row, "pretraining", bindings)
        ),
      )
      for row in ROWS
      if row.pretrains
    }
    first: dict[str, str] = {}
    self._pretraining = {
      name: first.setdefault(resolved.key, name)
      for name, resolved in self.pretrainings.items()
    }
    of_parts: dict[tuple[str, str], str] = {}
    self.open_qa = {
      row.name: of_parts.setdefault(self.parts(row), row.name) for row in ROWS
    }

  def parts(self, row: Row) -> tuple[str, str]:
    """Returns the names of the runs of a row's retriever and reader."""
    pretraining = f"pretraining/{self._pretraining.get(row.name)}"
    retrievers = {"pretraining": pretraining, "inverse_cloze": INVERSE_CLOZE}
    readers = {"pretraining": pretraining, "reading": BASELINE_READER}
    return retrievers[row.retriever], readers[row.reader]


def pretraining_command(
  commands: Commands, row: Row, name: str, bindings: Mapping[str, Value]
) -> StageCommand:
  """Returns the command of a row's pre-training, with these bindings."""
  retriever = commands.initial_checkpoint
  if row.from_inverse_cloze:
    retriever = commands.path(INVERSE_CLOZE)
  return commands.train(
    "pretraining",
    name,
    INITIAL_CHECKPOINT=retriever,
    INITIAL_READER=commands.path(first_reader(commands)),
    **bindings,
  )


def first_reader(commands: Commands) -> str:
  """Returns the name of the run whose reader pre-training starts from."""
  return READING_RETRIEVED if commands.reads_retrieved else READING
