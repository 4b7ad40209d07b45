"""Knowledge that crosses languages: rows over worlds in two languages.

Queries are masked statements in the low-resource language, whose own corpus
states some of the facts that they ask for. The corpus of the high-resource
language states all of them.

The runs of a seed, in a folder of their own:

    own/STAGE, both/STAGE       stages on the own corpus, and on both corpora
    both/pretraining_on_own     begins as both/pretraining does; its examples
                                and its candidates are from the own corpus
    generations/ROW             the blocks that a row searches, embedded by the
                                last checkpoint of its run
    evaluations/ROW/STATED_IN   statements by the corpora that state their facts
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from realm_jax.ablation.data import BOTH_CORPORA, OWN_CORPUS
from realm_jax.ablation.plan import AblationConfig, Plan, Run
from realm_jax.ablation.rows import REALM, Part, Row
from realm_jax.pipeline import Command, Step, Value

_PRETRAINING_ON_OWN = "pretraining_on_own"
# Runs whose retriever and reader a stage starts from.
_STARTS = {
  "inverse_cloze": (),
  "reading": (),
  "reading_retrieved": ("inverse_cloze", "reading"),
  "pretraining": ("inverse_cloze", "reading_retrieved"),
}


@dataclasses.dataclass(frozen=True)
class CrossLingualRow(Row):
  """A row: a run, whose last checkpoint searches a corpus.

  Attributes:
    run: Name of the run.
    corpus: Corpus that is searched.
    evaluation: Recipe of the evaluation.
  """

  part: Part = "cross_lingual"
  run: str = "both/pretraining"
  corpus: str = BOTH_CORPORA
  evaluation: str = "eval_statements"


class StatementResults(NamedTuple):
  """Folders of a row's evaluations, by the corpora that state the facts."""

  first: Path
  both: Path


@dataclasses.dataclass(frozen=True)
class CrossLingualConfig(AblationConfig):
  """Rows over worlds in two languages; REALM's searches and learns from both.

  Its `recipes` are those of the stages, `build_index`, `eval_statements` and
  `eval_bm25`, and its data have a second language.
  """

  needed_recipes: ClassVar[Sequence[str]] = (
    *_STARTS,
    "build_index",
    "eval_statements",
    "eval_bm25",
  )
  rows: ClassVar[Sequence[CrossLingualRow]] = (
    CrossLingualRow(REALM.name, "Both corpora, REALM on both"),
    CrossLingualRow(
      "realm_on_own",
      "Both corpora, REALM on the own one",
      run=f"both/{_PRETRAINING_ON_OWN}",
    ),
    CrossLingualRow(
      "inverse_cloze",
      "Both corpora, inverse cloze alone",
      run="both/reading_retrieved",
    ),
    CrossLingualRow(
      "own", "Own corpus alone", run="own/pretraining", corpus=OWN_CORPUS
    ),
    CrossLingualRow("bm25", "Both corpora, BM25", evaluation="eval_bm25"),
  )

  default_rows: ClassVar[str] = "all"

  def make_plan(
    self, rows: Sequence[Any], *, seeds: Iterable[int], output_dir: Path
  ) -> Plan:
    """Returns the runs of rows and seeds."""
    results: dict[str, list[StatementResults]] = {row.name: [] for row in rows}
    runs: list[Run] = []
    for seed in seeds:
      planned = _SeedPlan(self, output_dir / f"seed-{seed}", seed)
      for row in rows:
        results[row.name].append(planned.add(row))
      runs += planned.runs.values()
    return Plan(runs, results, frozenset())


class _SeedPlan:
  """The runs of one seed, by name."""

  def __init__(self, config: AblationConfig, folder: Path, seed: int):
    self.runs: dict[str, Run] = {}
    self._config, self._folder, self._seed = config, folder, seed

  def add(self, row: CrossLingualRow) -> StatementResults:
    """Adds the runs of a row, unless they are there already."""
    self._add_training(row, row.run)
    searched = self._directories(row.run, row.corpus)
    generations = f"generations/{row.name}"
    self._add(
      row,
      generations,
      self._config.command(
        "build_index",
        "build_index",
        {**searched, "GENERATIONS_DIR": self._path(generations)},
        ("--once",),
      ),
    )
    folders = []
    for stated_in in StatementResults._fields:
      name = f"evaluations/{row.name}/{stated_in}"
      bindings = {
        **searched,
        "GENERATION": self._path(generations),
        "QUESTIONS": self._path(f"world/statements-{stated_in}.jsonl"),
        "OUTPUT_DIR": self._path(name),
      }
      command = self._config.command("evaluate", row.evaluation, bindings)
      self._add(row, name, command)
      folders.append(self._folder / name)
    return StatementResults(*folders)

  def _add_training(self, row: Row, name: str) -> None:
    """Adds a run that trains, after those that it starts from."""
    group, stage = name.split("/")
    corpus = OWN_CORPUS if group == "own" else BOTH_CORPORA
    if stage == _PRETRAINING_ON_OWN:
      stage, corpus = "pretraining", OWN_CORPUS
    starts = [f"{group}/{start}" for start in _STARTS[stage]]
    for start in starts:
      self._add_training(row, start)
    directories = self._directories(name, corpus)
    bindings = {**directories, "SEED": self._seed}
    sidecar = None
    if not starts and self._config.initial_checkpoint is not None:
      bindings["INITIAL_CHECKPOINT"] = str(self._config.initial_checkpoint)
    if starts:
      retriever, reader = map(self._path, starts)
      bindings |= {"INITIAL_CHECKPOINT": retriever, "INITIAL_READER": reader}
      mode: dict[str, Value] = {"MODE": "every"}
      sidecar = self._config.command(
        "build_index", "build_index", {**directories, **mode}
      )
    command = self._config.command("train", stage, bindings)
    self._add(row, name, command, sidecar)

  def _path(self, name: str) -> str:
    return str(self._folder / name)

  def _directories(self, run: str, corpus: str) -> dict[str, Value]:
    return {"MODEL_DIR": self._path(run), "CORPUS_DIR": self._path(corpus)}

  def _add(
    self, row: Row, name: str, command: Command, sidecar: Command | None = None
  ) -> None:
    step = Step(command, self._folder / name, sidecar)
    run = self.runs.setdefault(name, Run(self._seed, name, step))
    if row.name not in run.rows:
      run.rows.append(row.name)
