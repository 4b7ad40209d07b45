"""The rows of the ablations, as plain data: which bindings change.

A row's `bindings` are those of pre-training (gin/runs/pretrain.gin), over the
recipe's. All else is the same in all rows.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from experiments.pipeline import Value
from realm_jax.errors import RealmError


@dataclasses.dataclass(frozen=True)
class Times:
  """A multiple of what the same recipe binds a name to."""

  factor: float
  name: str


Bindings = Mapping[str, Value | Times]

# Of all rows: so a run does not depend on how fast its index builder is.
SHARED_BINDINGS: Bindings = {
  "WAIT_FOR_SNAPSHOTS": True,
  "LAG_STEPS": Times(1, "SAVE_EVERY_STEPS"),
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
    published: The paper's figures (Table 2, development set of NQ), in
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
  reference: str = "realm"
  published: Mapping[str, float] = dataclasses.field(default_factory=dict)

  @property
  def pretrains(self) -> bool:
    """Whether any part of it comes from pre-training."""
    return "pretraining" in (self.retriever, self.reader)


_SWEPT_REFRESH: Bindings = {"SAVE_EVERY_STEPS": 50}


def _table2(
  name: str, title: str, exact_match: float, recall: float, **settings: Any
) -> Row:
  published = {"exact_match": exact_match, "recall_at_5": recall}
  return Row(name, title, "table2", published=published, **settings)


REALM = _table2("realm", "REALM", 38.2, 38.5)
ROWS: Sequence[Row] = (
  REALM,
  _table2(
    *("realm_retriever", "REALM retriever + baseline encoder", 37.4, 38.5),
    reader="reading",
  ),
  _table2(
    *("realm_encoder", "Baseline retriever + REALM encoder", 35.3, 13.9),
    retriever="inverse_cloze",
  ),
  _table2(
    *("baseline", "Baseline (ORQA)", 31.3, 13.9),
    retriever="inverse_cloze",
    reader="reading",
  ),
  _table2(
    *("random_tokens", "REALM with random uniform masks", 32.3, 24.2),
    bindings={"TASK": "masked_random_tokens"},
  ),
  _table2(
    *("random_spans", "REALM with random span masks", 35.3, 26.1),
    bindings={"TASK": "masked_random_spans"},
  ),
  _table2(
    *("stale_index", "30× stale index", 28.7, 15.1),
    bindings={"REFRESH_EVERY_STEPS": Times(30, "SAVE_EVERY_STEPS")},
  ),
  *(
    Row(name, title, "choices", bindings)
    for name, title, bindings in (
      ("no_null", "No null document", {"NULL_BLOCK": False}),
      (
        "trivial_retrieval",
        "Trivial retrieval not dropped",
        {"DROP_SOURCE": False},
      ),
      ("per_token_loss", "Per-token loss", {"LOSS_FORM": "per_token"}),
      ("joint_loss", "Joint loss", {"LOSS_FORM": "joint"}),
    )
  ),
  Row(
    *("no_inverse_cloze", "No inverse cloze", "choices"),
    from_inverse_cloze=False,
  ),
  *(
    Row(
      *(f"candidates_{count}", f"{count} candidates", "candidates"),
      {"NUM_CANDIDATES": count},
    )
    for count in (2, 4, 8, 16)
  ),
  *(
    Row(
      *(f"refresh_{steps}", f"Refresh every {steps} steps", "refresh"),
      {"REFRESH_EVERY_STEPS": steps, **_SWEPT_REFRESH},
    )
    for steps in (50, 100, 200, 400, 800)
  ),
  Row(
    *("refresh_never", "No refresh", "refresh"),
    {"REFRESH_EVERY_STEPS": Times(1, "NUM_STEPS"), **_SWEPT_REFRESH},
  ),
)


def select(names: Sequence[str], rows: Sequence[Any] = ROWS) -> list[Any]:
  """Returns rows by their names, those of their parts, or `all`.

  REALM, with which all are compared, is always the first; the others follow in
  the order of `rows`.

  Raises:
    RealmError: A name is unknown.
  """
  known = {row.name for row in rows} | {row.part for row in rows} | {"all"}
  if unknown := [name for name in names if name not in known]:
    raise RealmError(
      f"there is no row {unknown[0]!r}; want `all`, a part "
      f"({', '.join(dict.fromkeys(row.part for row in rows))}) or some of "
      f"{', '.join(row.name for row in rows)}"
    )
  wanted = {*names, REALM.name}
  return [row for row in rows if wanted & {row.name, row.part, "all"}]
