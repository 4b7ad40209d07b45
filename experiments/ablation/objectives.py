"""Compares the objectives with which pre-training trains a retriever.

All rows start from the same retriever, trained by inverse cloze, and from the
same reader. There are three plans, one after the other:

1. A few steps of each row, while nothing else runs, measure the cost of its
   step (`costs.json`). This determines the number of steps that take as long as
   REALM's.
2. In a development world, each row tries the same grid of temperatures of
   p(z|x) and learning rates of the retriever. The setting with the best
   recall@1 for masked statements is chosen.
3. In other worlds, each row is trained for the same number of steps as REALM,
   and for the same time.

Each seed has its own folder. `snapshots/ROW` has the blocks, embedded with the
last checkpoint of a row, and `evaluations/ROW` its metrics.
"""

import dataclasses
import itertools
import json
import statistics
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from experiments.ablation.plan import (
  AblationConfig,
  Plan,
  SeedSteps,
  read_pretrainings,
)
from experiments.ablation.report import START, num_collapsed
from experiments.ablation.rows import REALM, Multiple, Row
from experiments.pipeline import Step, Value, steps_of_equal_seconds
from realm_jax.errors import RealmError
from realm_jax.settings import NonNegativeInt, PositiveInt
from realm_jax.storage.json_files import write_json
from realm_jax.training.metric_rows import read_rows


@dataclasses.dataclass(frozen=True)
class ObjectiveRow(Row):
  """A row: an objective for the retriever, after inverse cloze.

  Attributes:
    base: Name of the row from which to take temperature and learning rate; None
      chooses them for this row.
  """

  part: str = "objectives"
  base: str | None = None

  @property
  def tuned_as(self) -> str:
    """Name of the row with its temperature and learning rate."""
    return self.base or self.name

  @property
  def is_pretraining(self) -> bool:
    """Whether it is pre-training instead of more inverse cloze.

    Steps of other rows are of another kind, so only times are compared.
    """
    return self.pretrains and self.recipe == "pretraining"

  def changed(
    self,
    suffix: str = "",
    *,
    bindings: Mapping[str, Value | Multiple] = {},
    **changes: Any,
  ) -> "ObjectiveRow":
    """Returns the row with a suffix, more bindings and other changes."""
    return dataclasses.replace(
      self,
      name=f"{self.name}{suffix}",
      bindings={**self.bindings, **bindings},
      **changes,
    )

  def tuned(self, temperature: float, rate: float) -> "ObjectiveRow":
    """Returns the row with a setting of the grid, as factors of the recipe's.

    The temperature of p(z|x) is 1 / SCORE_SCALE, and the rate is the learning
    rate of the retriever.
    """
    scale, rates = "SCORE_SCALE", "RETRIEVER_RATE_SCALE"
    return self.changed(
      bindings={scale: (1 / temperature, scale), rates: (rate, rates)}
    )


# The best temperature and rate in a row's grid, and columns for the report.
_Setting = tuple[tuple[float, float], dict[str, str]]


@dataclasses.dataclass(frozen=True)
class ObjectivesConfig(AblationConfig):
  """Objectives at equal steps and at equal time, and with stale indexes.

  Attributes:
    temperatures, rates: Values in the grid; see `ObjectiveRow.tuned`.
    development_seed: Seed of the world in which a row's setting is chosen.
    num_cost_steps: Number of steps to measure the cost of a row's step.
    stale_rows: Name, title and bindings of rows with a stale index. The first
      one is the freshest, with which the others are compared.
    stale_objectives: Rows, besides REALM's, that have versions with a stale
      index.
  """

  temperatures: Sequence[float] = (1.0, 0.5, 2.0)
  rates: Sequence[float] = (1.0, 0.5)
  development_seed: NonNegativeInt = 100
  num_cost_steps: PositiveInt = 60
  stale_rows: Sequence[Mapping[str, Any]] = ()
  stale_objectives: Sequence[str] = ("replug", "perplexity_frozen")
  row: ClassVar[type[Row]] = ObjectiveRow

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.data.files(Path()).sentences is None:
      raise RealmError(
        "masked statements are missing, by which settings are chosen: set "
        "SENTENCES"
      )
    known = [row.name for row in super().all_rows() if row.is_pretraining]
    if unknown := {*self.stale_objectives} - {*known}:
      raise RealmError(
        f"stale_objectives has {min(unknown)!r}; want some of "
        f"{', '.join(known)}: change STALE_OBJECTIVES"
      )

  def all_rows(self) -> list[Any]:
    """Returns the rows, and their versions with a stale index."""
    rows, stale_rows = super().all_rows(), self.stale_rows
    freshest = stale_rows[0]["name"] if stale_rows else ""
    return rows + [
      base.changed(
        f"_{stale['name']}",
        bindings=stale["bindings"],
        title=f"{base.title}, {stale['title']}",
        part="staleness",
        base=base.name,
        # The freshest version is compared with REALM.
        reference=f"{base.name}_{freshest}" if place else REALM,
      )
      for base in rows
      if base.name in (REALM, *self.stale_objectives)
      for place, stale in enumerate(stale_rows)
    ]

  def results(
    self, steps: SeedSteps, row: ObjectiveRow
  ) -> Iterator[tuple[str, Step]]:
    """Yields the row's run, its evaluations, and its answers if wanted."""
    # A row without pre-training has the retriever of inverse cloze, and a
    # reader.
    run, last, scale = steps.reader, {}, {}
    if row.pretrains:
      run, config = steps.pretraining(row), steps.pretrainings[row.name].config
      # By default, the builder takes the snapshot of the last checkpoint.
      last["CHECKPOINT_STEP"] = config.num_steps
      scale["SCORE_SCALE"] = config.retriever.score_scale
    yield "run", run
    if row.part == "cost":
      return
    name = run.folder.name
    snapshot = steps.build_index(run, f"snapshots/{name}", **last)
    statements, questions = steps.data.sentences, steps.data.questions
    evaluations = [("statements", "eval_retrieval", statements, {})]
    if row.part != "development":
      evaluations.append(("questions", "eval_retrieval", questions, {}))
      if row.recipe == "pretraining":
        evaluations.append(("masked", "eval_statements", statements, scale))
    for kind, recipe, file, bindings in evaluations:
      all_bindings = {"QUESTIONS": str(file), **bindings}
      where = f"{name}/{kind}", recipe, run, snapshot
      yield kind, steps.evaluate(*where, **all_bindings)
    if row.part not in ("development", "staleness"):
      yield "answers", steps.answers(row)

  def plans(
    self, rows: Sequence[Any], seeds: Sequence[int], folder: Path
  ) -> Iterator[Plan]:
    """Yields the plans for costs, for the development world and for the rows.

    If earlier plans were not executed, later ones have the recipes' settings.
    """
    if self.development_seed in seeds:
      raise RealmError(
        f"seed {self.development_seed} is for the development world; change "
        "DEVELOPMENT_SEED or FIRST_SEED"
      )
    names = {START, *(row.name for row in rows)}
    # Rows from which settings are taken come first in names of shared runs.
    bases = {row.tuned_as for row in rows}
    among = [row for row in self.all_rows() if row.name in names | bases]
    timed = [
      row
      for row in among
      if row.base is None and row.name in names and row.pretrains
    ]
    costs: Mapping[str, float] = {}
    if len(timed) > 1:
      costs = yield from self._measure(timed, folder)
      twins = self._timed(timed, costs)
      names |= {row.name for row in twins}
      # Rows of other stages are replaced by their twins.
      among = [row for row in among if row.is_pretraining or not row.pretrains]
      among += twins
    tuned = [row for row in among if row.tuned_as == row.name and row.pretrains]
    settings = yield from self._choose(tuned, folder)
    among = [
      row.tuned(*settings[row.tuned_as][0]) if row.pretrains else row
      for row in among
    ]
    reported = [row for row in among if row.name in names]
    plan = Plan(self, reported, among, seeds, folder)
    for row in reported:
      if row.pretrains:
        config = plan.pretrainings[row.name].config
        plan.training[row.name] = {
          "steps": config.num_steps,
          "seconds per step": round(costs.get(row.tuned_as, 0.0), 4) or "",
          "SCORE_SCALE": config.retriever.score_scale,
          "rate of the retriever": config.optimizer.retriever_rate_scale,
          **settings[row.tuned_as][1],
        }
    yield plan

  def _measure(
    self, rows: Sequence[ObjectiveRow], folder: Path
  ) -> Generator[Plan, None, Mapping[str, float]]:
    """Returns the time of each row's step in seconds, by name of the row.

    Earlier measurements are reused. During these steps no index is built, and
    snapshot 0 is searched.
    """
    path = folder / "costs.json"
    costs = json.loads(path.read_text()) if path.exists() else {}
    steps = {
      "NUM_STEPS": self.num_cost_steps,
      "REFRESH_EVERY_STEPS": (1, "NUM_STEPS"),
    }
    tried = [
      row.changed("_cost", bindings=steps, part="cost", base=row.name)
      for row in rows
      if row.name not in costs
    ]
    if tried:
      yield (plan := Plan(self, tried, tried, [self.development_seed], folder))
      if plan.is_finished():
        for row in tried:
          metrics = read_rows(plan.results[row.name][0]["run"].folder)
          seconds = [step["step_seconds"] for step in metrics]
          # The first steps wait for the index and fill the pipeline.
          costs[row.tuned_as] = statistics.median(seconds[len(seconds) // 2 :])
        write_json(path, costs)
    return costs

  def _timed(
    self, rows: Sequence[ObjectiveRow], costs: Mapping[str, float]
  ) -> list[ObjectiveRow]:
    """Returns twins that train for as long as REALM, which is the first row."""
    realm = read_pretrainings(self, rows[:1])[REALM].config
    timed = []
    for row in rows[1:]:
      steps = steps_of_equal_seconds(
        realm.num_steps,
        costs.get(REALM, 1.0),
        costs.get(row.name, 0.5),
        every=realm.checkpoints.save_every_steps,
      )
      twin = row.changed(bindings={"NUM_STEPS": steps}, part="equal_seconds")
      if row.is_pretraining:
        title = f"{row.title}, equal seconds"
        twin = twin.changed("_seconds", title=title, base=row.name)
      timed.append(twin)
    return timed

  def _choose(
    self, rows: Sequence[ObjectiveRow], folder: Path
  ) -> Generator[Plan, None, dict[str, _Setting]]:
    """Returns each row's best setting in the development world, by name.

    It is the first one with the highest recall@1 for statements.
    """
    points = [*itertools.product(self.temperatures, self.rates)]
    tried = {
      row.name: [
        row.tuned(temperature, rate).changed(
          f"_{temperature:g}_{rate:g}", part="development"
        )
        for temperature, rate in points
      ]
      for row in rows
    }
    start = next(row for row in self.all_rows() if row.name == START)
    start = start.changed(part="development")
    planned = [start, *itertools.chain(*tried.values())]
    plan = Plan(self, planned, planned, [self.development_seed], folder)
    yield plan
    if not plan.is_finished():
      return {row.name: ((1.0, 1.0), {}) for row in rows}
    recalls = {}
    for row in planned:
      (results,) = plan.results[row.name]
      recalls[row.name] = results["statements"].metrics()["recall_at_1"]
    settings = {}
    for name, rows_tried in tried.items():
      grid = [recalls[row.name] for row in rows_tried]
      before = [recalls[START]] * len(grid)
      settings[name] = (
        points[grid.index(max(grid))],
        {
          "recall@1 in the grid": " ".join(f"{recall:.3f}" for recall in grid),
          "collapsed in the grid": num_collapsed(grid, before),
        },
      )
    return settings
