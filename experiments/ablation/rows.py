"""The rows of an ablation, which its gin file lists, and their changes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from experiments.pipeline import Value
from realm_jax.errors import RealmError

# A multiple (FACTOR, NAME) of the value that the same recipe binds to NAME.
Multiple = tuple[float, str]
Bindings = Mapping[str, Value | Multiple]

# Row with which the others are compared.
REALM = "realm"
# Bindings of all rows. They make a run independent of its builder's speed.
SHARED_BINDINGS: Bindings = {
  "WAIT_FOR_SNAPSHOTS": True,
  "LAG_STEPS": (1, "SAVE_EVERY_STEPS"),
}


@dataclasses.dataclass(frozen=True)
class Row:
  """One row: changes to pre-training, and the models that are fine-tuned.

  Attributes:
    name: Name in flags and folders.
    title: Name in tables; the paper's name if the paper has the row.
    part: Part of the ablation, which has its own plot.
    bindings: Bindings of pre-training that differ from REALM's.
    retriever: Stage whose retriever open QA starts from.
    reader: Stage whose reader open QA starts from. `reading` is the baseline's
      reader, which has seen the same number of masked examples as REALM's.
    recipe: Recipe that trains the retriever, by default pre-training.
    from_inverse_cloze: Whether pre-training starts from inverse cloze.
    reference: Name of the row to compare with.
    published: The paper's scores (Table 2, development set of NQ), in
      percent, by their names in the report.
  """

  name: str
  title: str
  part: str
  bindings: Bindings = dataclasses.field(default_factory=dict)
  retriever: Literal["pretraining", "inverse_cloze"] = "pretraining"
  reader: Literal["pretraining", "reading"] = "pretraining"
  recipe: str = "pretraining"
  from_inverse_cloze: bool = True
  reference: str = REALM
  published: Mapping[str, float] = dataclasses.field(default_factory=dict)

  @property
  def pretrains(self) -> bool:
    """Whether its retriever or its reader comes from pre-training."""
    return "pretraining" in (self.retriever, self.reader)


def select(names: Sequence[str], rows: Sequence[Any]) -> list[Any]:
  """Selects rows by name or part, or `all`; REALM's is always included.

  Raises:
    RealmError: A name is unknown.
  """
  parts = dict.fromkeys(row.part for row in rows)
  known = [row.name for row in rows]
  if unknown := {*names} - {"all", *parts, *known}:
    raise RealmError(
      f"there is no row {min(unknown)!r}; want `all`, a part "
      f"({', '.join(parts)}) or some of {', '.join(known)}"
    )
  wanted = {*names, REALM}
  return [row for row in rows if wanted & {row.name, row.part, "all"}]
