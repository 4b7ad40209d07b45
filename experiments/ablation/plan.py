"""Which runs the rows need, and which of them they share.

The runs of a seed, in a folder of their own:

    inverse_cloze, reading    one each, for all rows
    reading_retrieved         the same, if it has a recipe
    baseline_reader           reading goes on, for as many examples as REALM has
    pretraining/ROW           one for each configuration that differs
    open_qa/ROW               one for each pair of a retriever and a reader
    evaluations/ROW/…         of open_qa/ROW: `answers`, after fine-tuning, and
                              `zero_shot`, of the retriever that it starts from

ROW is the first row of `ROWS` that has the run, whichever rows are chosen, so
that a later command with other rows finds it again.
"""

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from etils import epath

from experiments.ablation.data import Data
from experiments.ablation.rows import REALM, ROWS, SHARED_BINDINGS, Row, Times
from experiments.pipeline import Command, Step, Steps, Value
from realm_jax.errors import RealmError
from realm_jax.settings import NonNegativeInt, PositiveInt, require_valid
from realm_jax.training.config import TrainConfig

# Reading goes on with retrieved blocks, if it has a recipe.
READING_RETRIEVED = "reading_retrieved"
RECIPES = (
  *("inverse_cloze", "reading", "pretraining", "open_qa"),
  *("build_index", "eval", "eval_retrieval"),
)
_INVERSE_CLOZE, _READING = "inverse_cloze", "reading"
_BASELINE_READER = "baseline_reader"

# Folders of a row's results with one seed, by what they are.
Results = dict[str, Path]


@dataclasses.dataclass(frozen=True)
class Run:
  """A step of one seed, and the names of the rows that use it."""

  seed: int
  step: Step
  rows: list[str] = dataclasses.field(default_factory=list)


class Pretraining(NamedTuple):
  """A row's pre-training.

  Attributes:
    run: Name of the run, which is that of the first row that trains the same.
    bindings: Bindings over the recipe.
    config: What they make.
  """

  run: str
  bindings: Mapping[str, Value]
  config: TrainConfig

  @property
  def never_refreshed(self) -> bool:
    """Whether the run ends before a second snapshot is due."""
    config = self.config
    due = config.refresh_every_steps + config.refresh.lag_steps
    return due >= config.num_steps


class Plan(NamedTuple):
  """The runs of all seeds, in an order in which they can be made.

  Attributes:
    runs: Runs; those of one seed stand together.
    results: Results by row, one for each seed.
    pretrainings: What rows pre-train, by their names.
    training: What the report says of the training of rows, by row and by
      column.
  """

  runs: Sequence[Run]
  results: Mapping[str, Sequence[Results]]
  pretrainings: Mapping[str, Pretraining] = {}
  training: Mapping[str, Mapping[str, Any]] = {}


class SeedRuns(Steps, abc.ABC):
  """The steps of one seed, in a folder of their own, and which rows need them.

  Attributes:
    pretrainings: What rows pre-train, by their names.
    runs: Steps that rows need, in an order in which they can be made.
  """

  def __init__(
    self,
    config: "AblationConfig",
    folder: Path,
    seed: int,
    rows: Sequence[Any] = (),
    pretrainings: Mapping[str, Pretraining] | None = None,
  ):
    """Makes the steps that `rows`, which are all, may need.

    What they pre-train is read from the recipes, unless it is given.
    """
    self.data = config.data.files(folder)
    gin_files, always = {}, {}
    for recipe, files in config.recipes.items():
      gin_files[recipe] = [*files, *config.extra_gin_files]
      if not recipe.startswith(("build_index", "eval")):
        always[recipe] = {"SEED": seed}
      if recipe in config.num_steps:
        always[recipe]["NUM_STEPS"] = config.num_steps[recipe]
    super().__init__(
      folder, gin_files, corpus_dir=str(self.data.corpus_dir), always=always
    )
    self.config, self.seed = config, seed
    self.pretrainings = dict(pretrainings or {})
    self.runs: dict[str, Run] = {}
    self.make(rows)

  @abc.abstractmethod
  def make(self, rows: Sequence[Any]) -> None:
    """Makes the steps that train."""

  def add(self, row: Any) -> Results:
    """Adds the runs of a row, unless they are there already."""
    return {kind: self._use(row, step.name) for kind, step in self.of(row)}

  @abc.abstractmethod
  def of(self, row: Any) -> Iterator[tuple[str, Step]]:
    """Yields the steps that have a row's results, by what these are."""

  def _use(self, row: Row, name: str) -> Path:
    """Adds a step for a row, after those that it needs; returns its folder."""
    step = self.made[name]
    for before in step.needs:
      self._use(row, before)
    run = self.runs.setdefault(name, Run(self.seed, step))
    if row.name not in run.rows:
      run.rows.append(row.name)
    return step.folder


class SeedPlan(SeedRuns):
  """The steps of one seed that rows share."""

  def make(self, rows: Sequence[Row]) -> None:
    """Makes the stages before pre-training, and what rows train."""
    config = self.config
    start = config.initial_checkpoint
    self._start: dict[str, Any] = {
      "INITIAL_CHECKPOINT": None if start is None else str(start)
    }
    for name in (_INVERSE_CLOZE, _READING):
      self.train(name, name, **({} if start is None else self._start))
    self._reader = _READING
    if READING_RETRIEVED in config.recipes:
      # It reads the blocks that the inverse-cloze retriever finds.
      self._reader = name = READING_RETRIEVED
      first = self._first_snapshot(name)
      self.train(name, name, _INVERSE_CLOZE, _READING, first)
    if not self.pretrainings:
      self._read_pretrainings([row for row in rows if row.pretrains])
    for row in rows:
      if row.pretrains:
        self._add_pretraining(row)
    if REALM.name in self.pretrainings:
      self._add_baseline_reader()
    self._open_qa: dict[tuple[str, str], str] = {}
    for row in rows:
      parts = self._parts(row)
      name = self._open_qa.setdefault(parts, f"open_qa/{row.name}")
      self.train(
        *(name, "open_qa", *parts, self._first_snapshot(name)),
        TRAIN_QUESTIONS=str(self.data.train_questions),
      )

  def _first_snapshot(self, name: str) -> Command:
    """Returns the command that builds the first snapshot of a run."""
    return self.command("build_index", "build_index", name, CHECKPOINT_STEP=0)

  def _read_pretrainings(self, rows: Sequence[Row]) -> None:
    """Reads what rows pre-train, and which of them train the same.

    Raises:
      ValueError: A recipe or a binding is wrong.
    """
    recipes: dict[str, TrainConfig] = {}
    names: dict[str, str] = {}
    for row in rows:
      if row.recipe not in recipes:
        # Those that wait need a lag, which is a multiple.
        plain = self._pretrain("run", row, {"WAIT_FOR_SNAPSHOTS": False})
        recipes[row.recipe] = plain.command.build()
      bindings = _without_multiples(row, recipes[row.recipe])
      config = self._pretrain("run", row, bindings).command.build()
      every = config.refresh_every_steps
      refresh = dataclasses.replace(config.refresh, refresh_every_steps=every)
      # Equal where two rows train the same.
      key = repr(dataclasses.replace(config, refresh=refresh))
      run = names.setdefault(key, f"pretraining/{row.name}")
      self.pretrainings[row.name] = Pretraining(run, bindings, config)

  def _add_pretraining(self, row: Row) -> None:
    name, bindings, config = self.pretrainings[row.name]
    builder = None
    if config.stage.retrieval and not config.keeps_rolling_index:
      builder = self.command(
        *("build_index", "build_index", name),
        MODE="every",
        REFRESH_EVERY_STEPS=config.refresh.refresh_every_steps,
      )
    if name not in self.made:
      self._pretrain(name, row, bindings, builder)

  def _pretrain(
    self,
    name: str,
    row: Row,
    bindings: Mapping[str, Value],
    builder: Command | None = None,
  ) -> Step:
    reader = self._reader if row.recipe == "pretraining" else None
    if row.from_inverse_cloze:
      parts = (_INVERSE_CLOZE, reader)
      return self.train(name, row.recipe, *parts, builder, **bindings)
    given = {**self._start, **bindings}
    return self.train(name, row.recipe, None, reader, builder, **given)

  def _add_baseline_reader(self) -> None:
    """Adds a reader that has read as many masked examples as REALM's."""
    realm = self.pretrainings[REALM.name].config
    batch_size, num_steps = realm.data.batch_size, realm.num_steps
    if self._reader == READING_RETRIEVED:
      before = self.made[READING_RETRIEVED].command.build()
      num_examples = before.num_steps * before.data.batch_size
      num_steps += -(-num_examples // batch_size)
    self.train(
      *(_BASELINE_READER, _READING),
      reader=_READING,
      BATCH_SIZE=batch_size,
      LEARNING_RATE=realm.optimizer.learning_rate,
      WARMUP_STEPS=realm.optimizer.warmup_steps,
      NUM_STEPS=num_steps,
    )

  def _parts(self, row: Row) -> tuple[str, str]:
    """Returns the names of the runs of a row's retriever and reader."""
    pretrained = self.pretrainings[row.name].run if row.pretrains else ""
    retrievers = {"pretraining": pretrained, "inverse_cloze": _INVERSE_CLOZE}
    readers = {"pretraining": pretrained, "reading": _BASELINE_READER}
    return retrievers[row.retriever], readers[row.reader]

  def of(self, row: Row) -> Iterator[tuple[str, Step]]:
    """Yields the row's answers, and what its retriever finds before them."""
    yield "answers", self.answers(row)
    run = self._open_qa[self._parts(row)]
    for kind, questions in (
      ("zero_shot", self.data.questions),
      ("zero_shot_sentences", self.data.sentences),
    ):
      if questions:
        given = {"QUESTIONS": str(questions), "CHECKPOINT_STEP": 0}
        name = f"{Path(run).name}/{kind}"
        yield kind, self.evaluate(name, "eval_retrieval", run, **given)

  def answers(self, row: Row) -> Step:
    """Makes the evaluation of a row's answers, after its fine-tuning."""
    run = self._open_qa[self._parts(row)]
    questions = str(self.data.questions)
    name = f"{Path(run).name}/answers"
    return self.evaluate(name, "eval", run, QUESTIONS=questions)


def _without_multiples(row: Row, recipe: TrainConfig) -> dict[str, Value]:
  """Returns a row's bindings, with the recipe's values for multiples."""
  bindings = {**SHARED_BINDINGS, **row.bindings}
  values: dict[str, Value] = {
    name: value
    for name, value in bindings.items()
    if not isinstance(value, Times)
  }
  sizes: dict[str, Any] = {
    "SAVE_EVERY_STEPS": recipe.checkpoints.save_every_steps,
    "NUM_STEPS": recipe.num_steps,
    "SCORE_SCALE": recipe.retriever.score_scale,
    "RETRIEVER_RATE_SCALE": recipe.optimizer.retriever_rate_scale,
    **values,
  }
  save = sizes["SAVE_EVERY_STEPS"]
  for name, value in bindings.items():
    if isinstance(value, Times):
      values[name] = product = value.factor * sizes[value.name]
      if name == "REFRESH_EVERY_STEPS":
        # Snapshots are built from checkpoints, so it is rounded up.
        values[name] = -(-product // save) * save
  return values


@dataclasses.dataclass(frozen=True)
class AblationConfig:
  """One ablation: stages, data, seeds and budget.

  Attributes:
    recipes: Gin files by stage, for each name of `RECIPES`, and for
      `reading_retrieved`, if pre-training should start from such a reader.
    data: Corpus and questions of each seed.
    num_seeds: Number of seeds.
    first_seed: First seed; the others follow it.
    num_steps: Steps by stage, where they are not the recipe's.
    extra_gin_files: Gin files that are applied after each stage's recipe.
    initial_checkpoint: Checkpoint that inverse cloze and reading start from,
      such as an import of BERT; None starts from random weights.
  """

  recipes: Mapping[str, Sequence[str]]
  data: Data
  num_seeds: PositiveInt = 3
  first_seed: NonNegativeInt = 0
  num_steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
  extra_gin_files: Sequence[str] = ()
  initial_checkpoint: epath.PathLike | None = None
  seed_runs: ClassVar[type[SeedRuns]] = SeedPlan
  needed_recipes: ClassVar[Sequence[str]] = RECIPES
  rows: ClassVar[Sequence[Row]] = ROWS

  def __post_init__(self) -> None:
    require_valid(self)
    needed, given = {*self.needed_recipes}, {*self.recipes}
    if needed - given or given - needed - {READING_RETRIEVED}:
      raise RealmError(
        f"recipes={sorted(self.recipes)}; want gin files for each of "
        f"{', '.join(self.needed_recipes)}: change RECIPES"
      )
    if unknown := {*self.num_steps} - given:
      raise RealmError(
        f"num_steps of {min(unknown)!r}; want some of "
        f"{', '.join(self.recipes)}: change NUM_STEPS"
      )

  def plans(
    self, rows: Sequence[Any], *, seeds: Iterable[int], output_dir: Path
  ) -> Iterator[tuple[Sequence[Row], Plan]]:
    """Yields plans with their rows; each waits for the runs of those before.

    The last has what is reported. A generator that goes on while runs are
    missing, as a dry run does, plans with the recipes' own settings.

    Raises:
      ValueError: A recipe or binding is wrong.
    """
    yield rows, self.plan(rows, self.rows, seeds, output_dir)

  def plan(
    self,
    rows: Sequence[Any],
    among: Sequence[Any],
    seeds: Iterable[int],
    output_dir: Path,
  ) -> Plan:
    """Returns the runs of rows and seeds; the first row `among` all names one.

    Raises:
      ValueError: A recipe or binding is wrong.
    """
    results: dict[str, list[Results]] = {row.name: [] for row in rows}
    runs: list[Run] = []
    pretrainings = None
    for seed in seeds:
      folder = output_dir / f"seed-{seed}"
      planned = self.seed_runs(self, folder, seed, among, pretrainings)
      # Seeds differ in paths alone.
      pretrainings = planned.pretrainings
      for row in rows:
        results[row.name].append(planned.add(row))
      if not runs:
        _require_valid_commands(run.step for run in planned.runs.values())
      runs += planned.runs.values()
    return Plan(runs, results, pretrainings or {})


def _require_valid_commands(steps: Iterable[Step]) -> None:
  """Configures the commands of steps: an error shows before hours of work.

  Commands that bind the same names over the same files differ in paths alone,
  and what rows pre-train has been read.
  """
  commands = {
    (*command.gin_files, *command.bindings): command
    for step in steps
    for command in filter(None, (step.command, step.builder))
  }
  for command in commands.values():
    command.configured()


def chosen_ablation(*, ablation: AblationConfig) -> AblationConfig:
  """Returns the ablation that gin binds, by default the paper's."""
  return ablation
