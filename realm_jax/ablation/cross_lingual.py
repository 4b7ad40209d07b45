"""Knowledge that crosses languages: rows over worlds in two languages.

Queries are masked statements in the low-resource language, whose own corpus
states some of the facts that they ask for. The corpus of the high-resource
language states all of them.

A seed has a folder of its own, with the runs of `_RUNS`. The last checkpoint of
a row's run embeds the blocks that the row searches in `generations/ROW`, and
`evaluations/ROW` has the statements by where their facts are stated.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from realm_jax.ablation.data import CORPUS, HIGH_CORPUS, OWN_CORPUS
from realm_jax.ablation.plan import AblationConfig, Plan, Run
from realm_jax.ablation.rows import REALM, Part, Row
from realm_jax.pipeline import Command, Step, Value


class _Training(NamedTuple):
  """A run that trains: its recipe, corpus, and the runs it starts from.

  With a reader to start from, it searches that corpus for masked sentences of
  the own one.
  """

  recipe: str
  corpus: str
  retriever: str | None = None
  reader: str | None = None


_OWN, _BOTH = "own/inverse_cloze", "both/inverse_cloze"
_RUNS: Mapping[str, _Training] = {
  _OWN: _Training("inverse_cloze", OWN_CORPUS),
  "own/reading": _Training("reading", OWN_CORPUS),
  "own/reading_retrieved": _Training(
    "reading_retrieved", OWN_CORPUS, _OWN, "own/reading"
  ),
  "own/pretraining": _Training(
    "pretraining", OWN_CORPUS, _OWN, "own/reading_retrieved"
  ),
  # One language after the other, because the negatives of a batch would
  # otherwise teach to prefer blocks in the query's language.
  "both/inverse_cloze_high": _Training("inverse_cloze", HIGH_CORPUS),
  _BOTH: _Training("inverse_cloze", OWN_CORPUS, "both/inverse_cloze_high"),
  "both/reading": _Training("reading", CORPUS),
  "both/reading_retrieved": _Training(
    "reading_retrieved", CORPUS, _BOTH, "both/reading"
  ),
  "both/pretraining": _Training(
    "pretraining", CORPUS, _BOTH, "both/reading_retrieved"
  ),
  "both/pretraining_on_own": _Training(
    "pretraining", OWN_CORPUS, _BOTH, "both/reading_retrieved"
  ),
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
  corpus: str = CORPUS
  evaluation: str = "eval_statements"


class StatementResults(NamedTuple):
  """Folders of a row's evaluations, by where documents state the facts.

  `first` is the high-resource language alone, and `both` both languages.
  """

  first: Path
  both: Path


@dataclasses.dataclass(frozen=True)
class CrossLingualConfig(AblationConfig):
  """Rows over worlds in two languages; REALM's searches both in training."""

  needed_recipes: ClassVar[Sequence[str]] = (
    *dict.fromkeys(training.recipe for training in _RUNS.values()),
    "build_index",
    "eval_statements",
    "eval_bm25",
  )
  rows: ClassVar[Sequence[CrossLingualRow]] = (
    CrossLingualRow(REALM.name, "Both corpora, REALM over both"),
    CrossLingualRow(
      "realm_on_own",
      "Both corpora, REALM over the own one",
      run="both/pretraining_on_own",
    ),
    CrossLingualRow(
      "inverse_cloze",
      "Both corpora, inverse cloze alone",
      run="both/reading_retrieved",
    ),
    CrossLingualRow("bm25", "Both corpora, BM25", evaluation="eval_bm25"),
    CrossLingualRow(
      "own", "Own corpus alone", run="own/pretraining", corpus=OWN_CORPUS
    ),
  )
  default_rows: ClassVar[str] = "all"

  def plans(
    self, rows: Sequence[Any], *, seeds: Iterable[int], output_dir: Path
  ) -> Iterator[tuple[Sequence[Row], Plan]]:
    """Yields the one plan of the runs of rows and seeds."""
    results: dict[str, list[StatementResults]] = {row.name: [] for row in rows}
    runs: list[Run] = []
    for seed in seeds:
      planned = _SeedPlan(self, output_dir / f"seed-{seed}", seed, {})
      for row in rows:
        results[row.name].append(planned.add(row))
      runs += planned.runs.values()
    yield rows, Plan(runs, results, frozenset())


class _SeedPlan(NamedTuple):
  """The runs of one seed, by name."""

  config: AblationConfig
  folder: Path
  seed: int
  runs: dict[str, Run]

  def add(self, row: CrossLingualRow) -> StatementResults:
    """Adds the runs of a row, unless they are there already."""
    self._train(row, row.run)
    searched = self._directories(row.run, row.corpus)
    generations = f"generations/{row.name}"
    vectors = {**searched, "GENERATIONS_DIR": self._path(generations)}
    self._add(row, generations, self._build_index(vectors, "--once"))
    folders = []
    for stated_in in StatementResults._fields:
      name = f"evaluations/{row.name}/{stated_in}"
      bindings = {
        **searched,
        "GENERATION": self._path(generations),
        "QUESTIONS": self._path(f"world/statements-{stated_in}.jsonl"),
        "OUTPUT_DIR": self._path(name),
      }
      evaluation = self.config.command("evaluate", row.evaluation, bindings)
      self._add(row, name, evaluation)
      folders.append(self.folder / name)
    return StatementResults(*folders)

  def _train(self, row: Row, name: str) -> None:
    """Adds a run that trains, after those that it starts from."""
    recipe, corpus, retriever, reader = _RUNS[name]
    directories = self._directories(name, corpus)
    bindings: dict[str, Value] = {**directories, "SEED": self.seed}
    for start in filter(None, (retriever, reader)):
      self._train(row, start)
    if retriever is not None:
      bindings["INITIAL_CHECKPOINT"] = self._path(retriever)
    sidecar = None
    if reader is not None:
      bindings["INITIAL_READER"] = self._path(reader)
      bindings["PRETRAINING_CORPUS_DIR"] = self._path(OWN_CORPUS)
      sidecar = self._build_index({**directories, "MODE": "every"})
    train = self.config.command("train", recipe, bindings)
    self._add(row, name, train, sidecar)

  def _build_index(self, bindings: Mapping[str, Value], *flags: str) -> Command:
    return self.config.command("build_index", "build_index", bindings, flags)

  def _add(
    self, row: Row, name: str, command: Command, sidecar: Command | None = None
  ) -> None:
    step = Step(command, self.folder / name, sidecar)
    run = self.runs.setdefault(name, Run(self.seed, name, step))
    if row.name not in run.rows:
      run.rows.append(row.name)

  def _path(self, name: str) -> str:
    return str(self.folder / name)

  def _directories(self, run: str, corpus: str) -> dict[str, Value]:
    return {"MODEL_DIR": self._path(run), "CORPUS_DIR": self._path(corpus)}
