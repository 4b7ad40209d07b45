"""The rows of an ablation, which its gin file lists: what each one changes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from experiments.pipeline import Value
from realm_jax.errors import RealmError

# A multiple (FACTOR, NAME) of what the same recipe binds a name to.
Multiple = tuple[float, str]
Bindings = Mapping[str, Value | Multiple]

# Row with which the others are compared.
REALM = "realm"
# Of all rows: so a run does not depend on how fast its index builder is.
SHARED_BINDINGS: Bindings = {
  "WAIT_FOR_SNAPSHOTS": True,
  "LAG_STEPS": (1, "SAVE_EVERY_STEPS"),
}


@dataclasses.dataclass(frozen=True)
class Row:
  """One row: what pre-training changes, and whose parts are fine-tuned.

  Attributes:
    name: Name in flags and folders.
    title: Name in tables; that of the paper, where the paper has the row.
    part: Question that the row belongs to, which has a plot.
    bindings: Bindings of pre-training that differ from REALM's.
    retriever: Stage whose retriever open QA starts from.
    reader: Stage whose reader it starts from; `reading` is the baseline's,
      which has seen as many masked examples as REALM's.
    recipe: Recipe of what trains the retriever in place of pre-training.
    from_inverse_cloze: Whether pre-training starts from inverse cloze.
    reference: Name of the row with which it is compared.
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
    """Whether any part of it comes from pre-training."""
    return "pretraining" in (self.retriever, self.reader)


def select(names: Sequence[str], rows: Sequence[Any]) -> list[Any]:
  """Returns rows by their names or parts, or `all`; REALM's is always there.

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
