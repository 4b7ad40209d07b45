"""Knowledge that crosses languages: rows over worlds in two languages.

Queries are masked statements in the low-resource language, whose own corpus
states some of the facts that they ask for. The corpus of the high-resource
language states all of them.

A seed has a folder of its own. The last checkpoint of a row's run embeds the
blocks that the row searches in `snapshots/ROW`, and `evaluations/ROW` has the
statements by where their facts are stated.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar, get_args

from experiments.ablation.data import CORPUS, HIGH_CORPUS, OWN_CORPUS
from experiments.ablation.plan import AblationConfig, SeedRuns
from experiments.ablation.rows import REALM, Row
from experiments.pipeline import Step
from experiments.world.second_language import StatedIn


@dataclasses.dataclass(frozen=True)
class CrossLingualRow(Row):
  """A row: a run, whose last checkpoint searches a corpus.

  Attributes:
    run: Name of the run.
    corpus: Corpus that is searched.
    evaluation: Recipe of the evaluation.
  """

  part: str = "cross_lingual"
  run: str = "both/pretraining"
  corpus: str = CORPUS
  evaluation: str = "eval_statements"


class _SeedRuns(SeedRuns):
  """The steps of one seed over three corpora."""

  def make(self, rows: Sequence[Row]) -> None:
    """Makes all runs that a row may have."""
    del rows
    own, high = self.path(OWN_CORPUS), self.path(HIGH_CORPUS)
    cloze = "inverse_cloze"
    self.train(f"own/{cloze}", cloze, CORPUS_DIR=own)
    # One language after the other, because the negatives of a batch would
    # otherwise teach to prefer blocks in the query's language.
    first = f"both/{cloze}_high"
    self.train(first, cloze, CORPUS_DIR=high)
    self.train(f"both/{cloze}", cloze, first, CORPUS_DIR=own)
    for name, corpus in (("own", own), ("both", self.path(CORPUS))):
      reading, retrieved = f"{name}/reading", f"{name}/reading_retrieved"
      self.train(reading, "reading", CORPUS_DIR=corpus)
      # With a reader to start from, runs search a corpus for masked sentences
      # of the own one.
      for run, recipe, reader, searched in (
        (retrieved, "reading_retrieved", reading, corpus),
        (f"{name}/pretraining", "pretraining", retrieved, corpus),
        (f"{name}/pretraining_on_own", "pretraining", retrieved, own),
      ):
        builder = self.command(
          *("build_index", "build_index", run),
          MODE="every",
          CORPUS_DIR=searched,
        )
        self.train(
          *(run, recipe, f"{name}/{cloze}", reader, builder),
          CORPUS_DIR=searched,
          PRETRAINING_CORPUS_DIR=own,
        )

  def of(self, row: CrossLingualRow) -> Iterator[tuple[str, Step]]:
    """Yields the evaluations of statements, by where facts are stated."""
    snapshot, corpus = f"snapshots/{row.name}", self.path(row.corpus)
    self.build_index(row.run, snapshot, CORPUS_DIR=corpus)
    for stated_in in get_args(StatedIn):
      questions = self.path(f"world/statements-{stated_in}.jsonl")
      evaluation = self.evaluate(
        *(f"{row.name}/{stated_in}", row.evaluation, row.run, snapshot),
        CORPUS_DIR=corpus,
        QUESTIONS=questions,
      )
      yield stated_in, evaluation


@dataclasses.dataclass(frozen=True)
class CrossLingualConfig(AblationConfig):
  """Rows over worlds in two languages; REALM's searches both in training."""

  seed_runs: ClassVar[type[SeedRuns]] = _SeedRuns
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
