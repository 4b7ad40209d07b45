"""Plans the runs that rows need. Rows share some of their runs.

Each seed has a folder with its runs:

    inverse_cloze, reading    one run each, for all rows
    reading_retrieved         one run for all rows, if it has a recipe
    baseline_reader           reading, continued for REALM's number of examples
    pretraining/ROW           one run for each different configuration
    open_qa/ROW               one run for each pair of a retriever and a reader
    evaluations/ROW/…         evaluations of open_qa/ROW: `answers`, after
                              fine-tuning, and `zero_shot`, of the retriever
                              that it starts from

ROW is the first row of `ROWS` that uses the run, even if it is not chosen, so a
later command with other rows finds the run.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from etils import epath

from experiments.ablation.rows import REALM, SHARED_BINDINGS, Row
from experiments.data import Data
from experiments.pipeline import Step, Steps, Value, run
from realm_jax.errors import RealmError
from realm_jax.settings import NonNegativeInt, PositiveInt, require_valid
from realm_jax.training.config import TrainConfig

# Stage that continues reading with retrieved blocks, if it has a recipe.
_READING_RETRIEVED = "reading_retrieved"

# Steps with a row's results for one seed, by kind of result.
Results = dict[str, Step]


class Metric(NamedTuple):
  """A metric of a row.

  Attributes:
    name: Name in JSON.
    title: Name in tables.
    result: Kind of the row's result that has the metric.
    score: Name of each question's score in this result.
  """

  name: str
  title: str
  result: str
  score: str


class Pretraining(NamedTuple):
  """The pre-training of a row.

  Attributes:
    row: First row with the same pre-training, after which the run is named.
    bindings: Bindings in addition to its recipe.
    config: Resulting configuration.
  """

  row: Row
  bindings: Mapping[str, Value]
  config: TrainConfig

  @property
  def never_refreshed(self) -> bool:
    """Whether the run ends before a second snapshot is due."""
    config = self.config
    due = config.refresh_every_steps + config.refresh.lag_steps
    return due >= config.num_steps


class SeedSteps(Steps):
  """The steps of one seed, in its folder.

  Attributes:
    data: Data of the seed.
    rows: All rows. A run is named after the first row that uses it.
    pretrainings: Pre-training of each row, by name of the row.
  """

  def __init__(
    self,
    config: "AblationConfig",
    folder: Path,
    seed: int,
    rows: Sequence[Any] = (),
    pretrainings: Mapping[str, Pretraining] = {},
  ):
    recipes, always = {}, {}
    for recipe, files in config.recipes.items():
      recipes[recipe] = [*files, *config.extra_gin_files]
      if not recipe.startswith(("build_index", "eval")):
        always[recipe] = {"SEED": seed}
      if recipe in config.num_steps:
        always[recipe]["NUM_STEPS"] = config.num_steps[recipe]
    self.data = config.data.files(folder)
    super().__init__(folder, recipes, str(self.data.corpus_dir), always)
    self.rows, self.pretrainings = rows, pretrainings
    self._start: dict[str, Any] = {}
    if config.initial_checkpoint is not None:
      self._start["INITIAL_CHECKPOINT"] = str(config.initial_checkpoint)

  def answers(self, row: Row) -> Step:
    """Returns the evaluation of a row's answers after fine-tuning."""
    run, questions = self.open_qa(row), str(self.data.questions)
    name = f"{run.folder.name}/answers"
    return self.evaluate(name, "eval", run, QUESTIONS=questions)

  def open_qa(self, row: Row) -> Step:
    """Returns open QA, which rows share if they start from the same runs."""
    parts = self._parts(row)
    first = next(one for one in self.rows if self._parts(one) == parts)
    name = f"open_qa/{first.name}"
    return self.train(
      *(name, "open_qa", *parts, self.first_snapshot(name)),
      TRAIN_QUESTIONS=str(self.data.train_questions),
    )

  def _parts(self, row: Row) -> tuple[Step, Step]:
    """Returns the runs of a row's retriever and reader."""
    retriever, reader = self.inverse_cloze, self.baseline_reader
    if row.retriever == "pretraining":
      retriever = self.pretraining(row)
    if row.reader == "pretraining":
      reader = self.pretraining(row)
    return retriever, reader

  @functools.cached_property
  def inverse_cloze(self) -> Step:
    """The retriever from which rows start."""
    return self.train("inverse_cloze", "inverse_cloze", **self._start)

  @functools.cached_property
  def reading(self) -> Step:
    """The reader that was only trained on the sources of masked sentences."""
    return self.train("reading", "reading", **self._start)

  @functools.cached_property
  def reader(self) -> Step:
    """The reader from which pre-training starts."""
    name = _READING_RETRIEVED
    if name not in self.recipes:
      return self.reading
    # The inverse-cloze retriever finds the blocks to read.
    builder = self.first_snapshot(name)
    return self.train(name, name, self.inverse_cloze, self.reading, builder)

  @functools.cached_property
  def baseline_reader(self) -> Step:
    """A reader that has read the same number of masked examples as REALM's."""
    realm = self.pretrainings[REALM].config
    batch_size, num_steps = realm.data.batch_size, realm.num_steps
    if _READING_RETRIEVED in self.recipes:
      before = self.reader.command.build()
      num_examples = before.num_steps * before.data.batch_size
      num_steps += -(-num_examples // batch_size)
    return self.train(
      *("baseline_reader", "reading"),
      reader=self.reading,
      BATCH_SIZE=batch_size,
      LEARNING_RATE=realm.optimizer.learning_rate,
      WARMUP_STEPS=realm.optimizer.warmup_steps,
      NUM_STEPS=num_steps,
    )

  def pretraining(self, row: Row) -> Step:
    """Returns a row's pre-training, shared by rows with equal settings."""
    first, bindings, config = self.pretrainings[row.name]
    step = self.pretrain(f"pretraining/{first.name}", first, bindings)
    if not config.stage.retrieval or config.keeps_rolling_index:
      return step
    builder = self.builder(
      f"pretraining/{first.name}",
      MODE="every",
      REFRESH_EVERY_STEPS=config.refresh.refresh_every_steps,
    )
    return dataclasses.replace(step, builder=builder)

  def pretrain(
    self, name: str, row: Row, bindings: Mapping[str, Value]
  ) -> Step:
    """Returns a row's pre-training, with bindings added to its recipe."""
    retriever = self.inverse_cloze if row.from_inverse_cloze else None
    reader = self.reader if row.recipe == "pretraining" else None
    if retriever is None:
      bindings = {"INITIAL_CHECKPOINT": None, **self._start, **bindings}
    return self.train(name, row.recipe, retriever, reader, None, **bindings)


def read_pretrainings(
  config: "AblationConfig", rows: Iterable[Row]
) -> dict[str, Pretraining]:
  """Reads the pre-training of rows from their recipes, by name of the row."""
  # Seeds only differ in paths.
  steps = SeedSteps(config, Path("seed"), config.first_seed)
  recipes: dict[str, TrainConfig] = {}
  first: dict[str, Row] = {}
  pretrainings = {}
  for row in rows:
    if not row.pretrains:
      continue
    if row.recipe not in recipes:
      # Runs that wait for snapshots need a lag, which is a multiple.
      plain = steps.pretrain("run", row, {"WAIT_FOR_SNAPSHOTS": False})
      recipes[row.recipe] = plain.command.build()
    bindings = _without_multiples(row, recipes[row.recipe])
    built = steps.pretrain("run", row, bindings).command.build()
    every = built.refresh_every_steps
    refresh = dataclasses.replace(built.refresh, refresh_every_steps=every)
    # Equal if two rows have the same pre-training.
    key = repr(dataclasses.replace(built, refresh=refresh))
    named_after = first.setdefault(key, row)
    pretrainings[row.name] = Pretraining(named_after, bindings, built)
  return pretrainings


def _without_multiples(row: Row, recipe: TrainConfig) -> dict[str, Value]:
  """Returns a row's bindings, with multiples computed from the recipe."""
  bound = {**SHARED_BINDINGS, **row.bindings}
  values = {n: of for n, of in bound.items() if not isinstance(of, tuple)}
  sizes: dict[str, Any] = {
    "SAVE_EVERY_STEPS": recipe.checkpoints.save_every_steps,
    "NUM_STEPS": recipe.num_steps,
    "SCORE_SCALE": recipe.retriever.score_scale,
    "RETRIEVER_RATE_SCALE": recipe.optimizer.retriever_rate_scale,
    **values,
  }
  for name, value in bound.items():
    if isinstance(value, tuple):
      multiple, save = value[0] * sizes[value[1]], sizes["SAVE_EVERY_STEPS"]
      if name == "REFRESH_EVERY_STEPS":
        # Rounded up, because snapshots are built from checkpoints.
        multiple = -(-multiple // save) * save
      values[name] = multiple
  return values


class Plan:
  """The steps of all seeds that rows need.

  Attributes:
    rows, metrics: Rows and metrics of the report.
    folder, seeds: Folder of all seeds, and the folder of each, by seed.
    uses: Steps in a possible order of execution, seed by seed, with the names
      of the rows that share them.
    results: Results by row, one for each seed.
    pretrainings: Pre-training of each row, by name of the row.
    training: Columns of the report about the training of rows, by row.
  """

  def __init__(
    self,
    config: "AblationConfig",
    rows: Sequence[Any],
    among: Sequence[Any],
    seeds: Sequence[int],
    folder: Path,
  ):
    """Plans rows; runs are named after the first row `among` all rows."""
    self.rows, self.folder = rows, folder
    self._data = config.data
    self.seeds = {seed: folder / f"seed-{seed}" for seed in seeds}
    self.metrics = [Metric(*fields) for fields in config.metrics]
    self.uses: dict[Path, tuple[Step, list[str]]] = {}
    self.results: dict[str, list[Results]] = {row.name: [] for row in rows}
    self.training: dict[str, Mapping[str, Any]] = {}
    self.pretrainings = read_pretrainings(config, among)
    for seed, seed_folder in self.seeds.items():
      steps = SeedSteps(config, seed_folder, seed, among, self.pretrainings)
      for row in rows:
        results = dict(config.results(steps, row))
        self.results[row.name].append(results)
        for result in results.values():
          for step in result.in_order():
            _, users = self.uses.setdefault(step.folder, (step, []))
            if row.name not in users:
              users.append(row.name)
    # Finds errors in commands before hours of work. Commands with the same
    # files and names of bindings only differ in paths and seeds, and the
    # pre-training of rows was read above.
    commands = {
      (*command.gin_files, *command.bindings): command
      for step, _ in self.uses.values()
      for command in filter(None, (step.command, step.builder))
    }
    for command in commands.values():
      command.configured()

  def execute(self) -> None:
    """Prepares the data of all seeds, and runs unfinished steps."""
    for seed, seed_folder in self.seeds.items():
      self._data.prepare(seed_folder, seed)
    for number, (step, users) in enumerate(self.uses.values(), 1):
      if not step.is_finished():
        place, *name = step.folder.relative_to(self.folder).parts
        print(
          f"\n=== {number} of {len(self.uses)}: {place.replace('-', ' ')}, "
          f"{'/'.join(name)}, for {', '.join(users)}",
          flush=True,
        )
        run(step)

  def is_finished(self) -> bool:
    """Returns whether all steps are finished."""
    return all(step.is_finished() for step, _ in self.uses.values())


@dataclasses.dataclass(frozen=True)
class AblationConfig:
  """One ablation: stages, data, seeds and budget.

  Attributes:
    recipes: Gin files by stage. `reading_retrieved` is optional: pre-training
      starts from its reader.
    data: Corpus and questions of each seed.
    num_seeds: Number of seeds.
    first_seed: First seed; the others follow it.
    num_steps: Number of steps by stage, if not the recipe's.
    extra_gin_files: Gin files that are applied after each stage's recipe.
    initial_checkpoint: Checkpoint that inverse cloze and reading start from,
      such as an import of BERT; None starts from random weights.
    rows: Fields of each row, as in `Row`.
    metrics: Metrics in the report, each with the fields of `Metric` in order.
  """

  recipes: Mapping[str, Sequence[str]]
  data: Data
  num_seeds: PositiveInt = 3
  first_seed: NonNegativeInt = 0
  num_steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
  extra_gin_files: Sequence[str] = ()
  initial_checkpoint: epath.PathLike | None = None
  rows: Sequence[Mapping[str, Any]] = ()
  metrics: Sequence[Sequence[str]] = ()
  row: ClassVar[type[Row]] = Row

  def __post_init__(self) -> None:
    require_valid(self)
    if unknown := {*self.num_steps} - {*self.recipes}:
      raise RealmError(
        f"num_steps has {min(unknown)!r}; want some of "
        f"{', '.join(self.recipes)}: change NUM_STEPS"
      )

  def all_rows(self) -> list[Any]:
    """Returns all rows, from which a command chooses some.

    Raises:
      RealmError: A row has an unknown field, or lacks a required one.
    """
    try:
      return [self.row(**fields) for fields in self.rows]
    except TypeError as error:
      raise RealmError(f"{error}: change ROWS") from error

  def results(self, steps: SeedSteps, row: Any) -> Iterator[tuple[str, Step]]:
    """Yields the steps with a row's results, by kind of result.

    The results are its answers, and its retrieval before fine-tuning.
    """
    yield "answers", steps.answers(row)
    run = steps.open_qa(row)
    for kind, questions in (
      ("zero_shot", steps.data.questions),
      ("zero_shot_sentences", steps.data.sentences),
    ):
      if questions:
        bindings = {"QUESTIONS": str(questions), "CHECKPOINT_STEP": 0}
        name = f"{run.folder.name}/{kind}"
        yield kind, steps.evaluate(name, "eval_retrieval", run, **bindings)

  def plans(
    self, rows: Sequence[Any], seeds: Sequence[int], folder: Path
  ) -> Iterator[Plan]:
    """Yields the plans of rows and seeds; the last one is for the report.

    Each plan is executed before the next one is made, unless it is only listed.

    Raises:
      ValueError: A recipe or binding is wrong.
    """
    yield Plan(self, rows, self.all_rows(), seeds, folder)


def chosen_ablation(*, ablation: AblationConfig) -> AblationConfig:
  """Returns the ablation that gin configures, by default the paper's."""
  return ablation
