"""Knowledge that crosses languages: rows over worlds in two languages.

Queries are masked statements in the low-resource language, whose own corpus
states some of the facts that they ask for. The corpus of the high-resource
language states all of them.

A seed has a folder of its own. The last checkpoint of a row's run embeds the
blocks that the row searches in `snapshots/ROW`, and `evaluations/ROW` has the
statements by where their facts are stated.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import ClassVar, get_args

from experiments.ablation.plan import AblationConfig, SeedSteps
from experiments.ablation.rows import Row
from experiments.data import CORPUS, HIGH_CORPUS, OWN_CORPUS
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
  pretrains = False


class _SeedSteps(SeedSteps):
  """The steps of one seed over three corpora."""

  @functools.cached_property
  def runs(self) -> dict[str, Step]:
    """The runs that a row may have, by their names."""
    own, high = self.path(OWN_CORPUS), self.path(HIGH_CORPUS)
    cloze, made = "inverse_cloze", {}
    # One language after the other, because the negatives of a batch would
    # otherwise teach to prefer blocks in the query's language.
    first = self.train(f"both/{cloze}_high", cloze, CORPUS_DIR=high)
    for name, corpus, start in (
      ("own", own, None),
      ("both", self.corpus_dir, first),
    ):
      retriever = self.train(f"{name}/{cloze}", cloze, start, CORPUS_DIR=own)
      reader = self.train(f"{name}/reading", "reading", CORPUS_DIR=corpus)
      # With a reader to start from, runs search a corpus for masked sentences
      # of the own one.
      for run, recipe, searched in (
        (f"{name}/reading_retrieved", "reading_retrieved", corpus),
        (f"{name}/pretraining", "pretraining", corpus),
        (f"{name}/pretraining_on_own", "pretraining", own),
      ):
        builder = self.command(
          *("build_index", "build_index", self.folder / run),
          MODE="every",
          CORPUS_DIR=searched,
        )
        made[run] = self.train(
          *(run, recipe, retriever, reader, builder),
          CORPUS_DIR=searched,
          PRETRAINING_CORPUS_DIR=own,
        )
        reader = made[f"{name}/reading_retrieved"]
    return made

  def of(self, row: CrossLingualRow) -> Iterator[tuple[str, Step]]:
    """Yields the evaluations of statements, by where facts are stated."""
    run, corpus = self.runs[row.run], self.path(row.corpus)
    snapshot = self.build_index(run, f"snapshots/{row.name}", CORPUS_DIR=corpus)
    for stated_in in get_args(StatedIn):
      questions = self.path(f"world/statements-{stated_in}.jsonl")
      evaluation = self.evaluate(
        *(f"{row.name}/{stated_in}", row.evaluation, run, snapshot),
        CORPUS_DIR=corpus,
        QUESTIONS=questions,
      )
      yield stated_in, evaluation


@dataclasses.dataclass(frozen=True)
class CrossLingualConfig(AblationConfig):
  """Rows over worlds in two languages; REALM's searches both in training."""

  steps: ClassVar[type[SeedSteps]] = _SeedSteps
  row: ClassVar[type[Row]] = CrossLingualRow
  needed_recipes: ClassVar[Sequence[str]] = (
    *("inverse_cloze", "reading", "reading_retrieved", "pretraining"),
    *("build_index", "eval_statements", "eval_bm25"),
  )
