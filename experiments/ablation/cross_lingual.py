"""Knowledge that crosses languages: rows over worlds in two languages.

Queries are masked statements in the low-resource language, whose own corpus
states some of the facts that they ask for. The corpus of the high-resource
language states all of them.

A seed has a folder of its own. The last checkpoint of a row's run embeds the
blocks that the row searches in `snapshots/ROW`, and `evaluations/ROW` has the
statements by where their facts are stated.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from experiments.ablation.data import CORPUS, HIGH_CORPUS, OWN_CORPUS
from experiments.ablation.plan import (
  AblationConfig,
  Plan,
  Results,
  Run,
  SeedRuns,
  Training,
)
from experiments.ablation.rows import REALM, Part, Row

# Where documents state the facts of statements: in the high-resource language
# alone, or in both.
_STATED_IN = ("first", "both")


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


@dataclasses.dataclass(frozen=True)
class CrossLingualConfig(AblationConfig):
  """Rows over worlds in two languages; REALM's searches both in training."""

  needed_recipes: ClassVar[Sequence[str]] = (
    *("inverse_cloze", "reading", "reading_retrieved", "pretraining"),
    *("build_index", "eval_statements", "eval_bm25"),
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
    results: dict[str, list[Results]] = {row.name: [] for row in rows}
    runs: list[Run] = []
    for seed in seeds:
      planned = _SeedPlan(self, output_dir / f"seed-{seed}", seed)
      for row in rows:
        results[row.name].append(planned.add(row))
      runs += planned.runs.values()
    yield rows, Plan(runs, results)


class _SeedPlan(SeedRuns):
  """The runs of one seed, by name."""

  def __init__(self, config: CrossLingualConfig, folder: Path, seed: int):
    super().__init__(config, folder, seed)
    own, high = self.path(OWN_CORPUS), self.path(HIGH_CORPUS)
    cloze = Training("inverse_cloze")
    self.trainings = {
      "own/inverse_cloze": cloze._replace(corpus_dir=own),
      # One language after the other, because the negatives of a batch would
      # otherwise teach to prefer blocks in the query's language.
      "both/inverse_cloze_high": cloze._replace(corpus_dir=high),
      "both/inverse_cloze": cloze._replace(
        retriever="both/inverse_cloze_high", corpus_dir=own
      ),
    }
    for name, corpus in (("own", own), ("both", self.path(CORPUS))):
      ict, retrieved = f"{name}/inverse_cloze", f"{name}/reading_retrieved"
      # With a reader to start from, runs search a corpus for masked sentences
      # of the own one.
      searching = Training(
        *("pretraining", ict, retrieved, {"PRETRAINING_CORPUS_DIR": own}),
        index={"MODE": "every"},
        corpus_dir=corpus,
      )
      self.trainings |= {
        f"{name}/reading": Training("reading", corpus_dir=corpus),
        retrieved: searching._replace(
          recipe="reading_retrieved", reader=f"{name}/reading"
        ),
        f"{name}/pretraining": searching,
        f"{name}/pretraining_on_own": searching._replace(corpus_dir=own),
      }

  def add(self, row: CrossLingualRow) -> Results:
    """Adds the runs of a row, unless they are there already."""
    self.add_training(row, row.run)
    searched = self.directories(row.run, self.path(row.corpus))
    snapshot = self.add_snapshot(row, row.name, **searched)
    return {
      stated_in: self.add_evaluation(
        *(row, f"{row.name}/{stated_in}", row.evaluation),
        self.path(f"world/statements-{stated_in}.jsonl"),
        **searched,
        SNAPSHOT=snapshot,
      )
      for stated_in in _STATED_IN
    }
