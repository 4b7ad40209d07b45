"""What trains a retriever best: the objectives of pre-training, compared.

All rows start from the same retriever, trained by inverse cloze, and from the
same reader. Three plans follow each other:

1. A few steps of each row, while nothing else runs, give the cost of its step
   (`costs.json`), from which the steps follow that take as long as REALM's.
2. On a development world each row tries the same grid of temperatures of p(z|x)
   and learning rates of the retriever. That which finds most of the masked
   statements (recall@1) is chosen.
3. On other worlds each row is trained for as many steps as REALM, and for as
   many seconds.

A seed has a folder of its own: `snapshots/ROW` has the blocks as the last
checkpoint of a row embeds them, and `evaluations/ROW` its figures.
"""

import dataclasses
import itertools
import json
import statistics
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from experiments.ablation.plan import (
  READING_RETRIEVED,
  RECIPES,
  AblationConfig,
  Plan,
  SeedPlan,
  SeedRuns,
)
from experiments.ablation.report import START, num_collapsed
from experiments.ablation.rows import REALM, Bindings, Row, Times
from experiments.pipeline import Step, Value
from realm_jax.errors import RealmError
from realm_jax.evaluation.outputs import METRICS
from realm_jax.settings import NonNegativeInt, PositiveInt
from realm_jax.storage.json_files import write_json
from realm_jax.training.metric_rows import read_rows

# Trained for as many seconds alone, because their steps are of another kind.
_LARGE_BATCH, _HARD_NEGATIVES = "large_batch", "hard_negatives"
# Distances of refreshes, in steps, and what rolling refresh embeds in a step:
# as many blocks of the recipe's world as the first distance does.
_REFRESH_EVERY = (50, 200, 1500)
_ROLLING: Bindings = {
  "RETRIEVE_ON_DEVICE": True,
  "BLOCKS_PER_STEP": 22,
  "WAIT_FOR_SNAPSHOTS": False,
}

_Phase = tuple[Sequence[Row], Plan]


@dataclasses.dataclass(frozen=True)
class ObjectiveRow(Row):
  """A row: what the retriever learns from after inverse cloze.

  Attributes:
    base: Name of the row whose temperature and learning rate it takes; None
      for its own.
  """

  part: str = "objectives"
  base: str | None = None

  @property
  def tuned_as(self) -> str:
    """Name of the row whose temperature and learning rate it takes."""
    return self.base or self.name

  @property
  def is_pretraining(self) -> bool:
    """Whether it is pre-training, and not more of inverse cloze."""
    return self.pretrains and self.recipe == "pretraining"

  def binding(self, **bindings: Value | Times) -> "ObjectiveRow":
    """Returns the row with further bindings."""
    return dataclasses.replace(self, bindings={**self.bindings, **bindings})

  def tuned(self, temperature: float, rate: float) -> "ObjectiveRow":
    """Returns the row with a setting of the grid: factors of the recipe's.

    The temperature of p(z|x) is 1 / SCORE_SCALE, and the rate is that at which
    the retriever learns.
    """
    return self.binding(
      SCORE_SCALE=Times(1 / temperature, "SCORE_SCALE"),
      RETRIEVER_RATE_SCALE=Times(rate, "RETRIEVER_RATE_SCALE"),
    )

  def renamed(self, suffix: str, **changes: Any) -> "ObjectiveRow":
    """Returns the row with a longer name and other changes."""
    return dataclasses.replace(self, name=f"{self.name}_{suffix}", **changes)


# Open QA starts from the baseline's reader, which has seen as many masked
# examples as the readers of other rows.
_FROZEN: Bindings = {"FREEZE_READER": True, "SPAN_WEIGHT": 0.0}
_BASES = (
  ObjectiveRow(REALM.name, "Marginal, per token (REALM)"),
  ObjectiveRow(
    "marginal_joint", "Marginal, joint", bindings={"LOSS_FORM": "joint"}
  ),
  *(
    ObjectiveRow(objective, title, bindings={"OBJECTIVE": objective})
    for objective, title in (
      ("perplexity", "Perplexity (Atlas)"),
      ("leave_one_out", "Leave one out (Atlas)"),
      ("emdr2", "EMDR²"),
    )
  ),
  *(
    ObjectiveRow(
      name,
      f"{title}, reader frozen",
      bindings={"OBJECTIVE": objective, **_FROZEN},
      reader="reading",
    )
    for name, title, objective in (
      ("replug", "RePlug", "replug"),
      ("perplexity_frozen", "Perplexity", "perplexity"),
    )
  ),
  *(
    ObjectiveRow(recipe, title, reader="reading", recipe=recipe)
    for recipe, title in (
      (_LARGE_BATCH, "Inverse cloze, larger batch"),
      (_HARD_NEGATIVES, "Inverse cloze, hard negatives"),
    )
  ),
  ObjectiveRow(
    START, "No pre-training", retriever="inverse_cloze", reader="reading"
  ),
)


def _stale_rows(base: ObjectiveRow) -> list[ObjectiveRow]:
  """Returns a row's stale rows, compared with the first of them."""
  first, *_ = names = [f"refresh_{steps}" for steps in _REFRESH_EVERY]
  changes: list[tuple[str, str, Bindings]] = [
    (name, f"refresh every {steps} steps", {"REFRESH_EVERY_STEPS": steps})
    for name, steps in zip(names, _REFRESH_EVERY, strict=True)
  ]
  changes.append(("rolling", "rolling refresh", _ROLLING))
  return [
    base.binding(**bindings).renamed(
      name,
      title=f"{base.title}, {title}",
      part="staleness",
      base=base.name,
      # The first one itself is compared with REALM.
      reference=REALM.name if name == first else f"{base.name}_{first}",
    )
    for name, title, bindings in changes
  ]


class _SeedPlan(SeedPlan):
  """The steps of one seed, whose rows are evaluated before fine-tuning."""

  def of(self, row: Row) -> Iterator[tuple[str, Step]]:
    """Yields the row's run, its evaluations, and its answers if wanted."""
    run, last, scale = READING_RETRIEVED, {}, {}
    # Without pre-training it keeps the retriever of inverse cloze, and has a
    # reader.
    if row.pretrains:
      run, _, config = self.pretrainings[row.name]
      # By default the builder takes the one that the last checkpoint has used.
      last["CHECKPOINT_STEP"] = config.num_steps
      scale["SCORE_SCALE"] = config.retriever.score_scale
    yield "run", self.made[run]
    if row.part == "cost":
      return
    name = Path(run).name
    snapshot = self.build_index(run, f"snapshots/{name}", **last).name
    statements, questions = self.data.sentences, self.data.questions
    evaluations = [("statements", "eval_retrieval", statements, {})]
    if row.part != "development":
      evaluations.append(("questions", "eval_retrieval", questions, {}))
      if row.recipe == "pretraining":
        evaluations.append(("masked", "eval_statements", statements, scale))
    for kind, recipe, file, bindings in evaluations:
      given = {"QUESTIONS": str(file), **bindings}
      evaluation = self.evaluate(
        f"{name}/{kind}", recipe, run, snapshot, **given
      )
      yield kind, evaluation
    if row.part not in ("development", "staleness"):
      yield "answers", self.answers(row)


@dataclasses.dataclass(frozen=True)
class ObjectivesConfig(AblationConfig):
  """The objectives at equal steps and at equal seconds, and their staleness.

  Attributes:
    temperatures, rates: The grid: see `ObjectiveRow.tuned`.
    development_seed: Seed of the world on which a row's setting is chosen.
    num_cost_steps: Steps by which the cost of a row's step is measured.
    stale_objectives: Rows beside REALM's whose index gets stale.
  """

  temperatures: Sequence[float] = (1.0, 0.5, 2.0)
  rates: Sequence[float] = (1.0, 0.5)
  development_seed: NonNegativeInt = 100
  num_cost_steps: PositiveInt = 60
  stale_objectives: Sequence[str] = ("replug", "perplexity_frozen")
  seed_runs: ClassVar[type[SeedRuns]] = _SeedPlan
  needed_recipes: ClassVar[Sequence[str]] = (
    *RECIPES,
    READING_RETRIEVED,
    "eval_statements",
    _LARGE_BATCH,
    _HARD_NEGATIVES,
  )
  rows: ClassVar[Sequence[ObjectiveRow]] = (
    *_BASES,
    *(
      stale
      for base in _BASES
      if base.is_pretraining
      for stale in _stale_rows(base)
    ),
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.data.sentences is None:
      raise RealmError(
        "settings are chosen by masked statements; set SENTENCES to a file of "
        "them"
      )
    known = [row.name for row in _BASES if row.is_pretraining]
    if unknown := {*self.stale_objectives} - {*known}:
      raise RealmError(
        f"stale_objectives has {min(unknown)!r}; want some of "
        f"{', '.join(known)}: change STALE_OBJECTIVES"
      )

  def plans(
    self, rows: Sequence[Any], *, seeds: Iterable[int], output_dir: Path
  ) -> Iterator[_Phase]:
    """Yields the plans of costs, of the development world and of the rows."""
    if self.development_seed in (seeds := list(seeds)):
      raise RealmError(
        f"seed {self.development_seed} is that of the development world; "
        "change DEVELOPMENT_SEED or FIRST_SEED"
      )
    stale = {REALM.name, *self.stale_objectives}
    chosen = [
      row for row in rows if row.part != "staleness" or row.base in stale
    ]
    names = {START, *(row.name for row in chosen)}
    # Those whose settings they take have the first names for shared runs.
    bases = {row.tuned_as for row in chosen}
    among = [row for row in self.rows if row.name in names | bases]
    timed = [row for row in _BASES if row.name in names and row.pretrains]
    costs: Mapping[str, float] = {}
    if len(timed) > 1:
      costs = yield from self._measure(timed, output_dir)
      twins = self._timed(timed[1:], costs, output_dir)
      names |= {row.name for row in twins}
      # Those of other stages are their own twins.
      among = [row for row in among if row.is_pretraining or not row.pretrains]
      among += twins
    own = [row for row in among if row.tuned_as == row.name and row.pretrains]
    grids = yield from self._choose(own, output_dir)
    among = [
      row.tuned(*grids[row.tuned_as].best) if row.pretrains else row
      for row in among
    ]
    reported = [row for row in among if row.name in names]
    plan = self.plan(reported, among, seeds, output_dir)
    training = {}
    for row in reported:
      if row.pretrains:
        config, grid = plan.pretrainings[row.name].config, grids[row.tuned_as]
        training[row.name] = {
          "steps": config.num_steps,
          "seconds per step": round(costs.get(row.tuned_as, 0.0), 4) or "",
          "SCORE_SCALE": config.retriever.score_scale,
          "rate of the retriever": config.optimizer.retriever_rate_scale,
          "recall@1 in the grid": grid.text,
          "collapsed in the grid": grid.collapsed,
        }
    yield reported, plan._replace(training=training)

  def _measure(
    self, rows: Sequence[ObjectiveRow], output_dir: Path
  ) -> Generator[_Phase, None, dict[str, float]]:
    """Yields the plan of costs, and returns each row's seconds per step.

    What was measured before is not measured again. During these steps no index
    is built, and snapshot 0 is searched.
    """
    path = output_dir / "costs.json"
    costs = json.loads(path.read_text()) if path.exists() else {}
    short = {
      row.name: row.binding(
        NUM_STEPS=self.num_cost_steps,
        REFRESH_EVERY_STEPS=Times(1, "NUM_STEPS"),
      ).renamed("cost", part="cost")
      for row in rows
      if row.name not in costs
    }
    if short:
      tried = [*short.values()]
      plan = self.plan(tried, tried, [self.development_seed], output_dir)
      yield tried, plan
      if _is_finished(plan):
        for name, row in short.items():
          rows_of_steps = read_rows(plan.results[row.name][0]["run"])
          seconds = [step["step_seconds"] for step in rows_of_steps]
          # The first steps wait for the index and fill the pipeline.
          costs[name] = statistics.median(seconds[len(seconds) // 2 :])
        write_json(path, costs)
    return costs

  def _timed(
    self,
    rows: Sequence[ObjectiveRow],
    costs: Mapping[str, float],
    output_dir: Path,
  ) -> list[ObjectiveRow]:
    """Returns rows that are trained for as many seconds as REALM."""
    found = SeedPlan(self, output_dir / "seed", 0, _BASES[:1]).pretrainings
    realm = found[REALM.name].config
    timed = []
    for row in rows:
      steps = steps_of_equal_seconds(
        realm.num_steps,
        costs.get(REALM.name, 1.0),
        costs.get(row.name, 0.5),
        every=realm.checkpoints.save_every_steps,
      )
      twin = row.binding(NUM_STEPS=steps)
      if row.is_pretraining:
        title = f"{row.title}, equal seconds"
        twin = twin.renamed("seconds", title=title, base=row.name)
      timed.append(dataclasses.replace(twin, part="equal_seconds"))
    return timed

  def _choose(
    self, rows: Sequence[ObjectiveRow], output_dir: Path
  ) -> Generator[_Phase, None, dict[str, "_Grid"]]:
    """Yields the plan of the development world, and returns each row's grid."""
    points = [*itertools.product(self.temperatures, self.rates)]
    tried = {
      row.name: [
        row.tuned(temperature, rate).renamed(
          f"{temperature:g}_{rate:g}", part="development"
        )
        for temperature, rate in points
      ]
      for row in rows
    }
    start = dataclasses.replace(_BASES[-1], part="development")
    planned = [start, *itertools.chain(*tried.values())]
    plan = self.plan(planned, planned, [self.development_seed], output_dir)
    yield planned, plan
    if not _is_finished(plan):
      return {row.name: _Grid() for row in rows}

    def recall(row: ObjectiveRow) -> float:
      (results,) = plan.results[row.name]
      figures = json.loads((results["statements"] / METRICS).read_text())
      return figures["recall_at_1"]

    grids = {}
    for name, own in tried.items():
      found = [recall(row) for row in own]
      grids[name] = _Grid(
        best=points[found.index(max(found))],
        text=" ".join(f"{recall:.3f}" for recall in found),
        collapsed=num_collapsed(found, [recall(start)] * len(found)),
      )
    return grids


def steps_of_equal_seconds(
  num_steps: int, seconds: float, own_seconds: float, *, every: int
) -> int:
  """Returns how many steps take as long as `num_steps` of another cost.

  Args:
    num_steps: Steps of the other.
    seconds: Seconds of one of its steps.
    own_seconds: Seconds of an own step.
    every: Distance of checkpoints, to which steps are rounded, so that rows of
      about the same cost are trained alike.
  """
  exact = num_steps * seconds / own_seconds
  return max(1, round(exact / every)) * every


class _Grid(NamedTuple):
  """What the settings of a row came to on the development world.

  Attributes:
    best: Temperature and rate with the highest recall@1 of statements; the
      first of equal ones.
    text: The recalls in their order, temperatures before rates.
    collapsed: How many of the settings have collapsed, such as "1 of 6".
  """

  best: tuple[float, float] = (1.0, 1.0)
  text: str = ""
  collapsed: str = ""


def _is_finished(plan: Plan) -> bool:
  return all(run.step.is_finished() for run in plan.runs)
