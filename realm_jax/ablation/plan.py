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

from collections.abc import Iterable, Sequence
from pathlib import Path

from realm_jax.ablation.commands import Commands
from realm_jax.ablation.config import READING_RETRIEVED, AblationConfig
from realm_jax.ablation.naming import (
  BASELINE_READER,
  INVERSE_CLOZE,
  READING,
  Names,
  pretraining_command,
)
from realm_jax.ablation.recipes import Recipes, StepCounts
from realm_jax.ablation.rows import REALM, Row
from realm_jax.ablation.runs import Plan, RowResult, Run
from realm_jax.stage_commands import StageCommand, Value

_ANSWERS, _ZERO_SHOT = "answers", "zero_shot"
_SENTENCES = "zero_shot_sentences"


def make_plan(
  config: AblationConfig,
  rows: Sequence[Row],
  *,
  seeds: Iterable[int],
  output_dir: Path,
  recipes: Recipes,
) -> Plan:
  """Returns the runs of rows and seeds.

  Raises:
    ValueError: A recipe or binding is wrong.
  """
  runs: list[Run] = []
  results: dict[str, list[RowResult]] = {row.name: [] for row in rows}
  names = None
  for seed in seeds:
    folder = output_dir / f"seed-{seed}"
    commands = Commands(config, folder, seed)
    if names is None:
      # Seeds differ in paths alone.
      names = Names(commands, recipes)
    planned = _SeedPlan(commands, names, recipes)
    for row in rows:
      results[row.name].append(planned.add(row))
    runs += planned.runs.values()
  assert names is not None, "want a seed"
  steps = StepCounts(recipes)
  for run in runs:
    run.num_steps = steps.of(run.command)
    if run.sidecar is not None:
      # An error shows before hours of work.
      steps.of(run.sidecar)
  never_refreshed = frozenset(
    row.name
    for row in rows
    if row.pretrains and names.pretrainings[row.name].is_never_refreshed
  )
  return Plan(runs, results, never_refreshed)


class _SeedPlan:
  """The runs of one seed."""

  def __init__(self, commands: Commands, names: Names, recipes: Recipes):
    self._commands, self._names, self._recipes = commands, names, recipes
    self.runs: dict[str, Run] = {}

  def add(self, row: Row) -> RowResult:
    """Adds the runs of a row, unless they are there already."""
    commands, sources = self._commands, self._names.parts(row)
    for name in dict.fromkeys(sources):
      if name == BASELINE_READER:
        self._add_baseline_reader(row)
      elif name == INVERSE_CLOZE:
        self._add_first_stage(INVERSE_CLOZE, row)
      else:
        self._add_pretraining(name, row)
    name = f"open_qa/{self._names.open_qa[row.name]}"
    self._add(
      name,
      commands.train(
        "open_qa",
        name,
        INITIAL_CHECKPOINT=commands.path(sources[0]),
        INITIAL_READER=commands.path(sources[1]),
        TRAIN_QUESTIONS=commands.data.train_questions,
      ),
      row,
      starts_from=tuple(dict.fromkeys(sources)),
      # Generation 0, whichever checkpoint the run continues from.
      sidecar=commands.sidecar(name, flags=("--once",), CHECKPOINT_STEP=0),
    )
    questions, sentences = commands.data.questions, commands.data.sentences
    return RowResult(
      self._add_evaluation(row, _ANSWERS, "eval", questions),
      self._add_zero_shot(row, _ZERO_SHOT, questions),
      self._add_zero_shot(row, _SENTENCES, sentences) if sentences else None,
    )

  def _add_first_stage(self, name: str, row: Row) -> None:
    start = self._commands.initial_checkpoint
    bindings = {} if start is None else {"INITIAL_CHECKPOINT": start}
    command = self._commands.train(name, name, **bindings)
    self._add(name, command, row, starts_from=())

  def _add_baseline_reader(self, row: Row) -> None:
    """Adds a reader that has read as many masked examples as REALM's."""
    self._add_first_stage(READING, row)
    realm = self._names.pretrainings[REALM.name].config
    batch_size = realm.data.batch_size
    num_steps = realm.num_steps
    if self._commands.reads_retrieved:
      before = self._recipes.train_config(self._reading_retrieved())
      num_examples = before.num_steps * before.data.batch_size
      num_steps += -(-num_examples // batch_size)
    command = self._commands.train(
      READING,
      BASELINE_READER,
      INITIAL_READER=self._commands.path(READING),
      NUM_STEPS=num_steps,
      BATCH_SIZE=batch_size,
      LEARNING_RATE=realm.optimizer.learning_rate,
      WARMUP_STEPS=realm.optimizer.warmup_steps,
    )
    self._add(BASELINE_READER, command, row, starts_from=(READING,))

  def _add_pretraining(self, name: str, row: Row) -> None:
    resolved = self._names.pretrainings[row.name]
    first = (INVERSE_CLOZE,) if row.from_inverse_cloze else ()
    starts_from = (*first, READING)
    for stage in starts_from:
      self._add_first_stage(stage, row)
    if self._commands.reads_retrieved:
      self._add_reading_retrieved(row)
      starts_from = (*starts_from, READING_RETRIEVED)
    self._add(
      name,
      pretraining_command(self._commands, row, name, resolved.bindings),
      row,
      starts_from=starts_from,
      sidecar=self._commands.sidecar(
        name,
        MODE="every",
        REFRESH_EVERY_STEPS=resolved.config.refresh.refresh_every_steps,
      ),
    )

  def _add_reading_retrieved(self, row: Row) -> None:
    """Adds the reader of blocks that the inverse-cloze retriever finds."""
    self._add_first_stage(INVERSE_CLOZE, row)
    self._add(
      READING_RETRIEVED,
      self._reading_retrieved(),
      row,
      starts_from=(INVERSE_CLOZE, READING),
      sidecar=self._commands.sidecar(
        READING_RETRIEVED, flags=("--once",), CHECKPOINT_STEP=0
      ),
    )

  def _reading_retrieved(self) -> StageCommand:
    return self._commands.train(
      READING_RETRIEVED,
      READING_RETRIEVED,
      INITIAL_CHECKPOINT=self._commands.path(INVERSE_CLOZE),
      INITIAL_READER=self._commands.path(READING),
    )

  def _add_zero_shot(self, row: Row, kind: str, questions: str) -> Path:
    """Adds the evaluation of the retriever as it was before fine-tuning."""
    return self._add_evaluation(
      row, kind, "eval_retrieval", questions, CHECKPOINT_STEP=0
    )

  def _add_evaluation(
    self, row: Row, kind: str, recipe: str, questions: str, **bindings: Value
  ) -> Path:
    own = self._names.open_qa[row.name]
    name, model = f"evaluations/{own}/{kind}", f"open_qa/{own}"
    command = self._commands.evaluate(
      recipe, name, model=model, QUESTIONS=questions, **bindings
    )
    self._add(name, command, row, starts_from=(model,))
    return self.runs[name].folder

  def _add(
    self,
    name: str,
    command: StageCommand,
    row: Row,
    *,
    starts_from: tuple[str, ...],
    sidecar: StageCommand | None = None,
  ) -> None:
    run = self.runs.setdefault(
      name,
      Run(
        self._commands.seed,
        name,
        self._commands.folder / name,
        command,
        starts_from,
        sidecar,
      ),
    )
    if row.name not in run.rows:
      run.rows.append(row.name)
