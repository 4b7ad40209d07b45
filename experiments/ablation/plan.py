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

# Reading goes on with retrieved blocks, if it has a recipe.
_READING_RETRIEVED = "reading_retrieved"

# The steps that have a row's results with one seed, by what these are.
Results = dict[str, Step]


class Metric(NamedTuple):
  """A figure of a row: its names in JSON and in tables, and where it is.

  That is one of a row's results, and the name of each question's score in it.
  """

  name: str
  title: str
  result: str
  score: str


class Pretraining(NamedTuple):
  """What a row pre-trains.

  Attributes:
    row: First row that trains the same, after which the run is named.
    bindings: Bindings over its recipe.
    config: What they make.
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
  """The steps of one seed, in a folder of their own.

  Attributes:
    data: Where the data of the seed are.
    rows: All rows, the first of which that has a run gives it its name.
    pretrainings: What rows pre-train, by their names.
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
    """Makes the evaluation of a row's answers, after its fine-tuning."""
    run, questions = self.open_qa(row), str(self.data.questions)
    name = f"{run.folder.name}/answers"
    return self.evaluate(name, "eval", run, QUESTIONS=questions)

  def open_qa(self, row: Row) -> Step:
    """Makes open QA, which rows share that start from the same runs."""
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
    """The reader that has read the sources of masked sentences alone."""
    return self.train("reading", "reading", **self._start)

  @functools.cached_property
  def reader(self) -> Step:
    """The reader from which pre-training starts."""
    name = _READING_RETRIEVED
    if name not in self.recipes:
      return self.reading
    # It reads the blocks that the inverse-cloze retriever finds.
    builder = self.first_snapshot(name)
    return self.train(name, name, self.inverse_cloze, self.reading, builder)

  @functools.cached_property
  def baseline_reader(self) -> Step:
    """A reader that has read as many masked examples as REALM's."""
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
    """Makes a row's pre-training, which rows share that train the same."""
    first, bindings, config = self.pretrainings[row.name]
    step = self.pretrain(f"pretraining/{first.name}", first, bindings)
    if not config.stage.retrieval or config.keeps_rolling_index:
      return step
    builder = self.command(
      *("build_index", "build_index", step.folder),
      MODE="every",
      REFRESH_EVERY_STEPS=config.refresh.refresh_every_steps,
    )
    return dataclasses.replace(step, builder=builder)

  def pretrain(
    self, name: str, row: Row, bindings: Mapping[str, Value]
  ) -> Step:
    """Makes what a row pre-trains, with bindings over its recipe."""
    retriever = self.inverse_cloze if row.from_inverse_cloze else None
    reader = self.reader if row.recipe == "pretraining" else None
    if retriever is None:
      bindings = {"INITIAL_CHECKPOINT": None, **self._start, **bindings}
    return self.train(name, row.recipe, retriever, reader, None, **bindings)


def read_pretrainings(
  config: "AblationConfig", rows: Iterable[Row]
) -> dict[str, Pretraining]:
  """Reads what rows pre-train, by their names, from the recipes."""
  # Seeds differ in paths alone.
  steps = SeedSteps(config, Path("seed"), config.first_seed)
  recipes: dict[str, TrainConfig] = {}
  first: dict[str, Row] = {}
  found = {}
  for row in rows:
    if not row.pretrains:
      continue
    if row.recipe not in recipes:
      # Runs that wait need a lag, which is a multiple.
      plain = steps.pretrain("run", row, {"WAIT_FOR_SNAPSHOTS": False})
      recipes[row.recipe] = plain.command.build()
    bindings = _without_multiples(row, recipes[row.recipe])
    built = steps.pretrain("run", row, bindings).command.build()
    every = built.refresh_every_steps
    refresh = dataclasses.replace(built.refresh, refresh_every_steps=every)
    # Equal where two rows train the same.
    key = repr(dataclasses.replace(built, refresh=refresh))
    named_after = first.setdefault(key, row)
    found[row.name] = Pretraining(named_after, bindings, built)
  return found


def _without_multiples(row: Row, recipe: TrainConfig) -> dict[str, Value]:
  """Returns a row's bindings, with the recipe's values for multiples."""
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
        # Snapshots are built from checkpoints, so it is rounded up.
        multiple = -(-multiple // save) * save
      values[name] = multiple
  return values


class Plan:
  """The steps of all seeds that rows need.

  Attributes:
    rows, metrics: Rows and metrics of the report.
    folder, seeds: Folder of all seeds, and the folder of each, by seed.
    uses: Steps, in an order in which they can be made, with the names of the
      rows that share them; those of one seed stand together.
    results: Results by row, one for each seed.
    pretrainings: What rows pre-train, by their names.
    training: What the report says of the training of rows, by row and by
      column.
  """

  def __init__(
    self,
    config: "AblationConfig",
    rows: Sequence[Any],
    among: Sequence[Any],
    seeds: Sequence[int],
    folder: Path,
  ):
    """Plans rows; the first one `among` all rows that has a run names it."""
    self.rows, self.folder = rows, folder
    self._data = config.data
    self.seeds = {seed: folder / f"seed-{seed}" for seed in seeds}
    self.metrics = [Metric(*fields) for fields in config.metrics]
    self.uses: dict[Path, tuple[Step, list[str]]] = {}
    self.results: dict[str, list[Results]] = {row.name: [] for row in rows}
    self.training: dict[str, Mapping[str, Any]] = {}
    self.pretrainings = read_pretrainings(config, among)
    for seed, own in self.seeds.items():
      steps = SeedSteps(config, own, seed, among, self.pretrainings)
      for row in rows:
        results = dict(config.results(steps, row))
        self.results[row.name].append(results)
        for result in results.values():
          for step in result.in_order():
            _, users = self.uses.setdefault(step.folder, (step, []))
            if row.name not in users:
              users.append(row.name)
    # An error of a command shows before hours of work. Commands that bind the
    # same names over the same files differ in paths and seeds alone, and what
    # rows pre-train has been read.
    commands = {
      (*command.gin_files, *command.bindings): command
      for step, _ in self.uses.values()
      for command in filter(None, (step.command, step.builder))
    }
    for command in commands.values():
      command.configured()

  def execute(self) -> None:
    """Makes the data of the seeds, and runs what is left of the steps."""
    for seed, own in self.seeds.items():
      self._data.prepare(own, seed)
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
    """Returns whether all its steps are."""
    return all(step.is_finished() for step, _ in self.uses.values())


@dataclasses.dataclass(frozen=True)
class AblationConfig:
  """One ablation: stages, data, seeds and budget.

  Attributes:
    recipes: Gin files by stage; of `reading_retrieved`, if pre-training should
      start from such a reader.
    data: Corpus and questions of each seed.
    num_seeds: Number of seeds.
    first_seed: First seed; the others follow it.
    num_steps: Steps by stage, where they are not the recipe's.
    extra_gin_files: Gin files that are applied after each stage's recipe.
    initial_checkpoint: Checkpoint that inverse cloze and reading start from,
      such as an import of BERT; None starts from random weights.
    rows: Rows, whose fields are those of `Row`.
    metrics: Figures of the report, in the order of the fields of `Metric`.
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
        f"num_steps of {min(unknown)!r}; want some of "
        f"{', '.join(self.recipes)}: change NUM_STEPS"
      )

  def all_rows(self) -> list[Any]:
    """Returns all rows, of which a command chooses some.

    Raises:
      RealmError: A row has a field that rows do not have, or lacks one.
    """
    try:
      return [self.row(**fields) for fields in self.rows]
    except TypeError as error:
      raise RealmError(f"{error}: change ROWS") from error

  def results(self, steps: SeedSteps, row: Any) -> Iterator[tuple[str, Step]]:
    """Yields the steps that have a row's results, by what these are.

    They are its answers, and what its retriever finds before fine-tuning.
    """
    yield "answers", steps.answers(row)
    run = steps.open_qa(row)
    for kind, questions in (
      ("zero_shot", steps.data.questions),
      ("zero_shot_sentences", steps.data.sentences),
    ):
      if questions:
        given = {"QUESTIONS": str(questions), "CHECKPOINT_STEP": 0}
        name = f"{run.folder.name}/{kind}"
        yield kind, steps.evaluate(name, "eval_retrieval", run, **given)

  def plans(
    self, rows: Sequence[Any], seeds: Sequence[int], folder: Path
  ) -> Iterator[Plan]:
    """Yields the plans of rows and seeds, of which the last one is reported.

    Each is executed before the next one is made, unless it is only listed.

    Raises:
      ValueError: A recipe or binding is wrong.
    """
    yield Plan(self, rows, self.all_rows(), seeds, folder)


def chosen_ablation(*, ablation: AblationConfig) -> AblationConfig:
  """Returns the ablation that gin binds, by default the paper's."""
  return ablation
