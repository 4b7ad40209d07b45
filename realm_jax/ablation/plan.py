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

from realm_jax.ablation.data import Data
from realm_jax.ablation.rows import REALM, ROWS, SHARED_BINDINGS, Row, Times
from realm_jax.pipeline import Command, Step, Value
from realm_jax.settings import NonNegativeInt, PositiveInt, require_valid
from realm_jax.training.config import TrainConfig

_NEEDED_STAGES = ("inverse_cloze", "reading", "pretraining", "open_qa")
# Reading goes on with retrieved blocks, if it has a recipe.
READING_RETRIEVED = "reading_retrieved"
_TRAINED_STAGES = (*_NEEDED_STAGES, READING_RETRIEVED)
RECIPES = (*_NEEDED_STAGES, "build_index", "eval", "eval_retrieval")
_INVERSE_CLOZE, _READING = "inverse_cloze", "reading"
_BASELINE_READER = "baseline_reader"
_REFRESH, _SAVE, _NUM = "REFRESH_EVERY_STEPS", "SAVE_EVERY_STEPS", "NUM_STEPS"


class AblationError(ValueError):
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

  @property
  def seed_plan(self) -> "type[SeedPlan]":
    """What plans the runs of one seed."""
    return SeedPlan

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

  def command(
    self,
    module: str,
    recipe: str,
    bindings: Mapping[str, Value],
    flags: Sequence[str] = (),
  ) -> Command:
    """Returns a command with the gin files of a recipe, and its budget."""
    if recipe in self.num_steps:
      bindings = {_NUM: self.num_steps[recipe], **bindings}
    gin_files = [*self.recipes[recipe], *self.extra_gin_files]
    return Command(module, gin_files, bindings, flags)

  def plans(
    self, rows: Sequence[Any], *, seeds: Iterable[int], output_dir: Path
  ) -> Iterator[tuple[Sequence[Row], "Plan"]]:
    """Yields plans with their rows; each waits for the runs of those before.

    The last has what is reported. A generator that goes on while runs are
    missing, as a dry run does, plans with the recipes' own settings.

    Raises:
      ValueError: A recipe or binding is wrong.
    """
    yield rows, self.make_plan(rows, seeds=seeds, output_dir=output_dir)

  def make_plan(
    self,
    rows: Sequence[Any],
    *,
    seeds: Iterable[int],
    output_dir: Path,
    among: Sequence[Row] | None = None,
  ) -> "Plan":
    """Returns the runs of rows and seeds.

    Args:
      rows: Rows to plan.
      seeds: Seeds of the rows.
      output_dir: Directory of all runs.
      among: All rows, the first of which names a run; None for `self.rows`.

    Raises:
      ValueError: A recipe or binding is wrong.
    """
    among = self.rows if among is None else among
    # Seeds differ in paths alone.
    first = self.seed_plan(self, [], {}, output_dir / "seed", 0)
    pretrainings = {
      row.name: first.pretraining(row) for row in among if row.pretrains
    }
    results: dict[str, list[RowResult]] = {row.name: [] for row in rows}
    runs: list[Run] = []
    for seed in seeds:
      folder = output_dir / f"seed-{seed}"
      planned = self.seed_plan(self, among, pretrainings, folder, seed)
      for row in rows:
        results[row.name].append(planned.add(row))
      if not runs:
        # An error shows before hours of work.
        for run in planned.runs.values():
          for command in filter(None, (run.step.command, run.step.sidecar)):
            with command.configured():
              pass
      runs += planned.runs.values()
    never = {
      name for name, found in pretrainings.items() if found.never_refreshed
    }
    return Plan(runs, results, frozenset(never & results.keys()))


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


class RowResult(NamedTuple):
  """Where the results of a row with one seed are: folders of evaluations."""

  answers: Path
  zero_shot: Path
  sentences: Path | None


class Plan(NamedTuple):
  """The runs of all seeds, in an order in which they can be made.

  Attributes:
    runs: Runs; those of one seed stand together.
    results: Results by row, such as `RowResult`, one for each seed.
    never_refreshed: Names of rows whose index is never refreshed.
    training: What the report says of the training of rows, by row and by
      column.
  """

  runs: Sequence[Run]
  results: Mapping[str, Sequence[Any]]
  never_refreshed: frozenset[str]
  training: Mapping[str, Mapping[str, Any]] = {}


class Pretraining(NamedTuple):
  """A row's pre-training.

  Attributes:
    bindings: Bindings over the recipe, as values.
    config: Configuration that they make.
    never_refreshed: Whether the run ends before a second generation is due.
  """

  bindings: Mapping[str, Value]
  config: TrainConfig
  never_refreshed: bool

  @property
  def key(self) -> str:
    """Text that is equal where two rows train the same."""
    config = self.config
    every = config.refresh_every_steps
    refresh = dataclasses.replace(config.refresh, refresh_every_steps=every)
    return repr(dataclasses.replace(config, refresh=refresh))


class SeedPlan:
  """The runs of one seed, by name."""

  def __init__(
    self,
    config: AblationConfig,
    rows: Sequence[Row],
    pretrainings: Mapping[str, Pretraining],
    folder: Path,
    seed: int,
  ):
    self.runs: dict[str, Run] = {}
    self.config, self.pretrainings = config, pretrainings
    self.folder, self._seed = folder, seed
    self.data = config.data.files(folder, seed)
    self._names: dict[str, str] = {}
    for name, found in pretrainings.items():
      self._names.setdefault(found.key, f"pretraining/{name}")
    self._open_qa: dict[tuple[str, str], str] = {}
    for row in rows:
      self._open_qa.setdefault(self.parts(row), row.name)

  def add(self, row: Row) -> RowResult:
    """Adds the runs of a row, unless they are there already."""
    run = self.add_open_qa(row)
    own = run.removeprefix("open_qa/")

    def zero_shot(kind: str, questions: str) -> Path:
      """Adds the evaluation of the retriever before fine-tuning."""
      return self.add_evaluation(
        row,
        f"{own}/{kind}",
        "eval_retrieval",
        run,
        QUESTIONS=questions,
        CHECKPOINT_STEP=0,
      )

    questions, sentences = self.data.questions, self.data.sentences
    return RowResult(
      self.add_answers(row),
      zero_shot("zero_shot", questions),
      zero_shot("zero_shot_sentences", sentences) if sentences else None,
    )

  def add_open_qa(self, row: Row) -> str:
    """Adds a row's fine-tuning, and returns the name of its run."""
    name = f"open_qa/{self._open_qa[self.parts(row)]}"
    self.add_training(row, name)
    return name

  def add_answers(self, row: Row) -> Path:
    """Adds a row's fine-tuning and the evaluation of its answers."""
    run = self.add_open_qa(row)
    name = f"{run.removeprefix('open_qa/')}/answers"
    questions = self.data.questions
    return self.add_evaluation(row, name, "eval", run, QUESTIONS=questions)

  def add_evaluation(
    self, row: Row, name: str, recipe: str, run: str, **bindings: Value
  ) -> Path:
    """Adds an evaluation of a run, and returns its folder."""
    name = f"evaluations/{name}"
    own = {**self.directories(run), "OUTPUT_DIR": self.path(name)}
    command = self.config.command("evaluate", recipe, {**own, **bindings})
    self.add_run(row, name, command)
    return self.folder / name

  def pretraining(self, row: Row) -> Pretraining:
    """Returns a row's bindings, with the recipe's values for multiples.

    Rows that are never refreshed are made equal: their checkpoints are as far
    apart as the recipe's, and the second generation is due after the last step.

    Raises:
      ValueError: The recipe or a binding is wrong.
    """
    bindings = {**SHARED_BINDINGS, **row.bindings}
    values, config = self._pretrained(row, bindings)
    every = config.refresh_every_steps
    never = every + config.refresh.lag_steps >= config.num_steps
    if never and _REFRESH in row.bindings:
      bindings.pop(_SAVE, None)
      bindings[_REFRESH] = Times(1, _NUM)
      values, config = self._pretrained(row, bindings)
    return Pretraining(values, config, never)

  def _pretrained(
    self, row: Row, bindings: Mapping[str, Value | Times]
  ) -> tuple[Mapping[str, Value], TrainConfig]:
    values: dict[str, Value] = {
      name: value
      for name, value in bindings.items()
      if not isinstance(value, Times)
    }
    # Those that wait need a lag, which is a multiple.
    recipe = _config_of(
      self._pretraining_command(
        row, "pretraining", {**values, "WAIT_FOR_GENERATIONS": False}
      )
    )
    save = recipe.checkpoints.save_every_steps
    sizes = {
      _SAVE: save,
      _NUM: recipe.num_steps,
      "SCORE_SCALE": recipe.retriever.score_scale,
      "RETRIEVER_RATE_SCALE": recipe.optimizer.retriever_rate_scale,
    }
    for name, value in bindings.items():
      if isinstance(value, Times):
        product = value.factor * sizes[value.name]
        # Generations are built from checkpoints, so their distance is rounded
        # up.
        rounded = -(-product // save) * save
        values[name] = rounded if name == _REFRESH else product
    command = self._pretraining_command(row, "pretraining", values)
    return values, _config_of(command)

  def _pretraining_command(
    self, row: Row, name: str, bindings: Mapping[str, Value]
  ) -> Command:
    retriever = self.config.initial_checkpoint
    if row.from_inverse_cloze:
      retriever = self.path(_INVERSE_CLOZE)
    start: dict[str, Value] = {
      "INITIAL_CHECKPOINT": None if retriever is None else str(retriever)
    }
    if row.recipe == "pretraining":
      reader = READING_RETRIEVED if self._reads_retrieved else _READING
      start["INITIAL_READER"] = self.path(reader)
    return self._train(row.recipe, name, **start, **bindings)

  def parts(self, row: Row) -> tuple[str, str]:
    """Returns the names of the runs of a row's retriever and reader."""
    pretrained = ""
    if row.pretrains:
      pretrained = self._names[self.pretrainings[row.name].key]
    retrievers = {"pretraining": pretrained, "inverse_cloze": _INVERSE_CLOZE}
    readers = {"pretraining": pretrained, "reading": _BASELINE_READER}
    return retrievers[row.retriever], readers[row.reader]

  @property
  def _reads_retrieved(self) -> bool:
    return READING_RETRIEVED in self.config.recipes

  def path(self, name: str) -> str:
    return str(self.folder / name)

  def directories(self, name: str) -> dict[str, Value]:
    corpus_dir = self.data.corpus_dir
    return {"MODEL_DIR": self.path(name), "CORPUS_DIR": corpus_dir}

  def _train(self, stage: str, name: str, **bindings: Value) -> Command:
    own = {**self.directories(name), "SEED": self._seed}
    return self.config.command("train", stage, {**own, **bindings})

  def _first_generation(self, name: str) -> Command:
    """Returns the builder of generation 0, even if the run goes on later."""
    bindings = {**self.directories(name), "CHECKPOINT_STEP": 0}
    return self.config.command(
      "build_index", "build_index", bindings, ("--once",)
    )

  def add_training(self, row: Row, name: str) -> None:
    """Adds a run that trains, after those that it starts from."""
    command, sidecar = self._training(row, name)
    for binding in ("INITIAL_CHECKPOINT", "INITIAL_READER"):
      source = Path(str(command.bindings.get(binding)))
      if source.is_relative_to(self.folder):
        own = source.relative_to(self.folder)
        self.add_training(row, own.as_posix())
    self.add_run(row, name, command, sidecar)

  def _training(self, row: Row, name: str) -> tuple[Command, Command | None]:
    """Returns what trains a run, and what builds its index, if any."""
    if name.startswith("open_qa/"):
      retriever, reader = self.parts(row)
      command = self._train(
        "open_qa",
        name,
        INITIAL_CHECKPOINT=self.path(retriever),
        INITIAL_READER=self.path(reader),
        TRAIN_QUESTIONS=self.data.train_questions,
      )
      return command, self._first_generation(name)
    if name.startswith("pretraining/"):
      found = self.pretrainings[row.name]
      every = found.config.refresh.refresh_every_steps
      own = {**self.directories(name), "MODE": "every", _REFRESH: every}
      command = self._pretraining_command(row, name, found.bindings)
      if not found.config.stage.needs_index or found.config.keeps_own_index:
        return command, None
      builder = self.config.command("build_index", "build_index", own)
      return command, builder
    if name == READING_RETRIEVED:
      # It reads the blocks that the inverse-cloze retriever finds.
      return self._reading_retrieved(), self._first_generation(name)
    if name == _BASELINE_READER:
      return self._baseline_reader(), None
    start = self.config.initial_checkpoint
    given = {} if start is None else {"INITIAL_CHECKPOINT": str(start)}
    return self._train(name, name, **given), None

  def _baseline_reader(self) -> Command:
    """Returns what trains a reader on as many masked examples as REALM's."""
    realm = self.pretrainings[REALM.name].config
    batch_size, num_steps = realm.data.batch_size, realm.num_steps
    if self._reads_retrieved:
      before = _config_of(self._reading_retrieved())
      num_examples = before.num_steps * before.data.batch_size
      num_steps += -(-num_examples // batch_size)
    return self._train(
      _READING,
      _BASELINE_READER,
      INITIAL_READER=self.path(_READING),
      BATCH_SIZE=batch_size,
      LEARNING_RATE=realm.optimizer.learning_rate,
      WARMUP_STEPS=realm.optimizer.warmup_steps,
      **{_NUM: num_steps},
    )

  def _reading_retrieved(self) -> Command:
    return self._train(
      READING_RETRIEVED,
      READING_RETRIEVED,
      INITIAL_CHECKPOINT=self.path(_INVERSE_CLOZE),
      INITIAL_READER=self.path(_READING),
    )

  def add_run(
    self, row: Row, name: str, command: Command, sidecar: Command | None = None
  ) -> None:
    step = Step(command, self.folder / name, sidecar)
    run = self.runs.setdefault(name, Run(self._seed, name, step))
    if row.name not in run.rows:
      run.rows.append(row.name)


def _config_of(command: Command) -> TrainConfig:
  """Returns what a `train` command would train."""
  with command.configured() as configured:
    return configured()
