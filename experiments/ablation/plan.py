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

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from etils import epath

from experiments.ablation.data import Data
from experiments.ablation.rows import REALM, ROWS, SHARED_BINDINGS, Row, Times
from experiments.pipeline import Command, Step, Value
from realm_jax.errors import RealmError
from realm_jax.settings import NonNegativeInt, PositiveInt, require_valid
from realm_jax.training.config import TrainConfig

_NEEDED_STAGES = ("inverse_cloze", "reading", "pretraining", "open_qa")
# Reading goes on with retrieved blocks, if it has a recipe.
READING_RETRIEVED = "reading_retrieved"
_TRAINED_STAGES = (*_NEEDED_STAGES, READING_RETRIEVED)
RECIPES = (*_NEEDED_STAGES, "build_index", "eval", "eval_retrieval")
_INVERSE_CLOZE, _READING = "inverse_cloze", "reading"
_BASELINE_READER = "baseline_reader"
_FIRST_SNAPSHOT: Mapping[str, Value] = {"CHECKPOINT_STEP": 0}
_REFRESH, _SAVE, _NUM = "REFRESH_EVERY_STEPS", "SAVE_EVERY_STEPS", "NUM_STEPS"

# Folders of a row's results with one seed, by what they are.
Results = dict[str, Path]


class AblationError(RealmError):
  """An ablation that cannot run as it is configured."""


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
  needed_recipes: ClassVar[Sequence[str]] = RECIPES
  rows: ClassVar[Sequence[Row]] = ROWS
  default_rows: ClassVar[str] = "table2"

  def __post_init__(self) -> None:
    require_valid(self)
    needed, given = {*self.needed_recipes}, {*self.recipes}
    if needed - given or given - needed - {READING_RETRIEVED}:
      raise AblationError(
        f"recipes={sorted(self.recipes)}; want gin files for each of "
        f"{', '.join(self.needed_recipes)}: change RECIPES"
      )
    if unknown := [n for n in self.num_steps if n not in _TRAINED_STAGES]:
      raise AblationError(
        f"num_steps of {unknown[0]!r}; the stages are "
        f"{', '.join(_TRAINED_STAGES)}: change NUM_STEPS"
      )

  def plans(
    self, rows: Sequence[Any], *, seeds: Iterable[int], output_dir: Path
  ) -> Iterator[tuple[Sequence[Row], "Plan"]]:
    """Yields plans with their rows; each waits for the runs of those before.

    The last has what is reported. A generator that goes on while runs are
    missing, as a dry run does, plans with the recipes' own settings.

    Raises:
      ValueError: A recipe or binding is wrong.
    """
    yield rows, make_plan(SeedPlan, self, rows, self.rows, seeds, output_dir)


def make_plan(
  seed_plan: "type[SeedPlan]",
  config: AblationConfig,
  rows: Sequence[Any],
  among: Sequence[Row],
  seeds: Iterable[int],
  output_dir: Path,
) -> "Plan":
  """Returns the runs of rows and seeds.

  Args:
    seed_plan: What plans the runs of one seed.
    config: The ablation.
    rows: Rows to plan.
    among: All rows, the first of which names a run.
    seeds: Seeds of the rows.
    output_dir: Directory of all runs.

  Raises:
    ValueError: A recipe or binding is wrong.
  """
  # Seeds differ in paths alone.
  first = seed_plan(config, output_dir / "seed", 0)
  pretrainings = {
    row.name: first.pretraining(row) for row in among if row.pretrains
  }
  results: dict[str, list[Results]] = {row.name: [] for row in rows}
  runs: list[Run] = []
  for seed in seeds:
    folder = output_dir / f"seed-{seed}"
    planned = seed_plan(config, folder, seed, among, pretrainings)
    for row in rows:
      results[row.name].append(planned.add(row))
    if not runs:
      # An error shows before hours of work. Commands that bind the same names
      # over the same files differ in paths alone: pretrainings are read above.
      commands = {
        (*command.gin_files, *command.bindings): command
        for run in planned.runs.values()
        for command in filter(None, (run.step.command, run.step.builder))
      }
      for command in commands.values():
        command.configured()
    runs += planned.runs.values()
  never = {name for name, one in pretrainings.items() if one.never_refreshed}
  configs = {name: one.config for name, one in pretrainings.items()}
  return Plan(runs, results, frozenset(never & results.keys()), configs)


def chosen_ablation(*, ablation: AblationConfig) -> AblationConfig:
  """Returns the ablation that gin binds, by default the paper's."""
  return ablation


@dataclasses.dataclass(frozen=True)
class Run:
  """A step of one seed, and the names of the rows that use it."""

  seed: int
  name: str
  step: Step
  rows: list[str] = dataclasses.field(default_factory=list)


class Plan(NamedTuple):
  """The runs of all seeds, in an order in which they can be made.

  Attributes:
    runs: Runs; those of one seed stand together.
    results: Results by row, one for each seed.
    never_refreshed: Names of rows whose index is never refreshed.
    configs: What rows pre-train, by their names.
    training: What the report says of the training of rows, by row and by
      column.
  """

  runs: Sequence[Run]
  results: Mapping[str, Sequence[Results]]
  never_refreshed: frozenset[str] = frozenset()
  configs: Mapping[str, TrainConfig] = {}
  training: Mapping[str, Mapping[str, Any]] = {}


class Pretraining(NamedTuple):
  """A row's pre-training: bindings over the recipe, and what they make."""

  bindings: Mapping[str, Value]
  config: TrainConfig

  @property
  def never_refreshed(self) -> bool:
    """Whether the run ends before a second snapshot is due."""
    config = self.config
    due = config.refresh_every_steps + config.refresh.lag_steps
    return due >= config.num_steps

  @property
  def key(self) -> str:
    """Text that is equal where two rows train the same."""
    config = self.config
    every = config.refresh_every_steps
    refresh = dataclasses.replace(config.refresh, refresh_every_steps=every)
    return repr(dataclasses.replace(config, refresh=refresh))


class Training(NamedTuple):
  """A run that trains.

  Attributes:
    recipe: Stage whose gin files it has.
    retriever, reader: Names of the runs that it starts from, if any.
    bindings: Further bindings.
    index: Bindings of the index builder beside it; None for no builder.
    corpus_dir: Corpus; None for that of the seed's data.
  """

  recipe: str
  retriever: str | None = None
  reader: str | None = None
  bindings: Mapping[str, Value] = {}
  index: Mapping[str, Value] | None = None
  corpus_dir: str | None = None


class SeedRuns:
  """The runs of one seed, by name, in a folder of their own.

  Attributes:
    trainings: All runs that may be trained.
    runs: Those that rows need, in an order in which they can be made.
  """

  def __init__(self, config: AblationConfig, folder: Path, seed: int):
    self.config, self.folder, self.seed = config, folder, seed
    self.data = config.data.files(folder)
    self.trainings: dict[str, Training] = {}
    self.runs: dict[str, Run] = {}

  def path(self, name: str) -> str:
    """Returns the folder of a run as the value of a binding."""
    return str(self.folder / name)

  def directories(
    self, run: str, corpus_dir: str | None = None
  ) -> dict[str, Value]:
    """Returns the bindings that name a run and a corpus."""
    corpus_dir = corpus_dir or str(self.data.corpus_dir)
    return {"MODEL_DIR": self.path(run), "CORPUS_DIR": corpus_dir}

  def command(
    self, module: str, recipe: str, *flags: str, **bindings: Value
  ) -> Command:
    """Returns a command with the gin files of a recipe, and its budget."""
    config = self.config
    if recipe in config.num_steps:
      bindings = {_NUM: config.num_steps[recipe], **bindings}
    gin_files = [*config.recipes[recipe], *config.extra_gin_files]
    return Command(module, gin_files, bindings, flags)

  def training_command(self, name: str, training: Training) -> Command:
    """Returns what trains a run."""
    bindings = {
      **self.directories(name, training.corpus_dir),
      "SEED": self.seed,
      **training.bindings,
    }
    if training.retriever is not None:
      bindings["INITIAL_CHECKPOINT"] = self.path(training.retriever)
    if training.reader is not None:
      bindings["INITIAL_READER"] = self.path(training.reader)
    return self.command("train", training.recipe, **bindings)

  def add_training(self, row: Row, name: str) -> Path:
    """Adds a run that trains, after those that it starts from."""
    training, builder = self.trainings[name], None
    for start in filter(None, (training.retriever, training.reader)):
      self.add_training(row, start)
    if training.index is not None:
      own = self.directories(name, training.corpus_dir)
      builder = self.command(
        "build_index", "build_index", **own, **training.index
      )
    return self.add_run(
      row, name, self.training_command(name, training), builder
    )

  def add_run(
    self, row: Row, name: str, command: Command, builder: Command | None = None
  ) -> Path:
    """Adds a run for a row, unless it is there, and returns its folder."""
    step = Step(command, self.folder / name, builder)
    run = self.runs.setdefault(name, Run(self.seed, name, step))
    if row.name not in run.rows:
      run.rows.append(row.name)
    return step.folder

  def add_snapshot(self, row: Row, name: str, **bindings: Value) -> str:
    """Adds the build of `snapshots/NAME`, and returns its folder."""
    name = f"snapshots/{name}"
    command = self.command(
      *("build_index", "build_index", "--once"),
      **bindings,
      SNAPSHOTS_DIR=self.path(name),
    )
    return str(self.add_run(row, name, command))

  def add_evaluation(
    self,
    row: Row,
    name: str,
    recipe: str,
    questions: epath.PathLike,
    **bindings: Value,
  ) -> Path:
    """Adds the evaluation `evaluations/NAME`, and returns its folder."""
    name = f"evaluations/{name}"
    command = self.command(
      *("evaluate", recipe),
      **bindings,
      OUTPUT_DIR=self.path(name),
      QUESTIONS=str(questions),
    )
    return self.add_run(row, name, command)


class SeedPlan(SeedRuns):
  """The runs of one seed that rows share.

  Args:
    config: The ablation.
    folder: Folder of the seed.
    seed: The seed.
    rows: All rows, the first of which names a run.
    pretrainings: What each of them trains, by its name.
  """

  def __init__(
    self,
    config: AblationConfig,
    folder: Path,
    seed: int,
    rows: Sequence[Row] = (),
    pretrainings: Mapping[str, Pretraining] | None = None,
  ):
    super().__init__(config, folder, seed)
    self.pretrainings = pretrainings or {}
    self._recipes: dict[str, TrainConfig] = {}
    start = config.initial_checkpoint
    given = {} if start is None else {"INITIAL_CHECKPOINT": str(start)}
    self._reader = _READING
    self.trainings = {
      name: Training(name, bindings=given)
      for name in (_INVERSE_CLOZE, _READING)
    }
    if READING_RETRIEVED in config.recipes:
      # It reads the blocks that the inverse-cloze retriever finds.
      self._reader = READING_RETRIEVED
      self.trainings[READING_RETRIEVED] = Training(
        *(READING_RETRIEVED, _INVERSE_CLOZE, _READING), index=_FIRST_SNAPSHOT
      )
    if REALM.name in self.pretrainings:
      self.trainings[_BASELINE_READER] = self._baseline_reader()
    self._names: dict[str, str] = {}
    for row in rows:
      if row.pretrains:
        self._add_pretraining(row, self.pretrainings[row.name])
    self._open_qa: dict[tuple[str, str], str] = {}
    for row in rows:
      name = self._open_qa.setdefault(self.parts(row), f"open_qa/{row.name}")
      questions = {"TRAIN_QUESTIONS": str(self.data.train_questions)}
      self.trainings[name] = Training(
        "open_qa", *self.parts(row), questions, _FIRST_SNAPSHOT
      )

  def _add_pretraining(self, row: Row, found: Pretraining) -> None:
    name = self._names.setdefault(found.key, f"pretraining/{row.name}")
    if name in self.trainings:
      return
    index = None
    if found.config.stage.needs_index and not found.config.keeps_rolling_index:
      every = found.config.refresh.refresh_every_steps
      index = {"MODE": "every", _REFRESH: every}
    training = self._pretraining(row, found.bindings)
    self.trainings[name] = training._replace(index=index)

  def _baseline_reader(self) -> Training:
    """Returns what trains a reader on as many masked examples as REALM's."""
    realm = self.pretrainings[REALM.name].config
    batch_size, num_steps = realm.data.batch_size, realm.num_steps
    if self._reader == READING_RETRIEVED:
      before = self._config_of(self.trainings[READING_RETRIEVED])
      num_examples = before.num_steps * before.data.batch_size
      num_steps += -(-num_examples // batch_size)
    bindings: dict[str, Value] = {
      "BATCH_SIZE": batch_size,
      "LEARNING_RATE": realm.optimizer.learning_rate,
      "WARMUP_STEPS": realm.optimizer.warmup_steps,
      _NUM: num_steps,
    }
    return Training(_READING, reader=_READING, bindings=bindings)

  def add(self, row: Row) -> Results:
    """Adds the runs of a row, unless they are there already."""
    results = {"answers": self.add_answers(row)}
    run = self._open_qa[self.parts(row)]
    for name, questions in (
      ("zero_shot", self.data.questions),
      ("zero_shot_sentences", self.data.sentences),
    ):
      if questions:
        # The retriever before fine-tuning.
        results[name] = self.add_evaluation(
          *(row, f"{Path(run).name}/{name}", "eval_retrieval", questions),
          **self.directories(run),
          CHECKPOINT_STEP=0,
        )
    return results

  def add_answers(self, row: Row) -> Path:
    """Adds a row's fine-tuning and the evaluation of its answers."""
    run = self._open_qa[self.parts(row)]
    self.add_training(row, run)
    return self.add_evaluation(
      *(row, f"{Path(run).name}/answers", "eval", self.data.questions),
      **self.directories(run),
    )

  def pretraining(self, row: Row) -> Pretraining:
    """Returns a row's bindings, with the recipe's values for multiples.

    Raises:
      ValueError: The recipe or a binding is wrong.
    """
    bindings = {**SHARED_BINDINGS, **row.bindings}
    values: dict[str, Value] = {
      name: value
      for name, value in bindings.items()
      if not isinstance(value, Times)
    }
    if row.recipe not in self._recipes:
      # Those that wait need a lag, which is a multiple.
      plain = self._pretraining(row, {"WAIT_FOR_SNAPSHOTS": False})
      self._recipes[row.recipe] = self._config_of(plain)
    recipe = self._recipes[row.recipe]
    sizes: dict[str, Any] = {
      _SAVE: recipe.checkpoints.save_every_steps,
      _NUM: recipe.num_steps,
      "SCORE_SCALE": recipe.retriever.score_scale,
      "RETRIEVER_RATE_SCALE": recipe.optimizer.retriever_rate_scale,
      **values,
    }
    save = sizes[_SAVE]
    for name, value in bindings.items():
      if isinstance(value, Times):
        product = value.factor * sizes[value.name]
        # Snapshots are built from checkpoints, so their distance is rounded
        # up.
        rounded = -(-product // save) * save
        values[name] = rounded if name == _REFRESH else product
    return Pretraining(values, self._config_of(self._pretraining(row, values)))

  def _pretraining(self, row: Row, bindings: Mapping[str, Value]) -> Training:
    retriever = _INVERSE_CLOZE if row.from_inverse_cloze else None
    reader = self._reader if row.recipe == "pretraining" else None
    if retriever is None:
      start = self.config.initial_checkpoint
      given = None if start is None else str(start)
      bindings = {"INITIAL_CHECKPOINT": given, **bindings}
    return Training(row.recipe, retriever, reader, bindings)

  def parts(self, row: Row) -> tuple[str, str]:
    """Returns the names of the runs of a row's retriever and reader."""
    pretrained = ""
    if row.pretrains:
      pretrained = self._names[self.pretrainings[row.name].key]
    retrievers = {"pretraining": pretrained, "inverse_cloze": _INVERSE_CLOZE}
    readers = {"pretraining": pretrained, "reading": _BASELINE_READER}
    return retrievers[row.retriever], readers[row.reader]

  def _config_of(self, training: Training) -> TrainConfig:
    made, function = self.training_command("run", training).configured()
    return made.build(function)
