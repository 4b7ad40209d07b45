"""Transfer of knowledge between languages: rows in worlds with two languages.

Queries are masked statements in the low-resource language. The corpus of this
language states only some of their facts. The corpus of the high-resource
language states all of them.

Each seed has its own folder. `snapshots/ROW` has the blocks that a row
searches, embedded with the last checkpoint of its run. `evaluations/ROW` groups
the statements by the languages in which their facts are stated.
"""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, get_args

from experiments.ablation.plan import AblationConfig, SeedSteps
from experiments.ablation.rows import Row
from experiments.data import CORPUS, HIGH_CORPUS, OWN_CORPUS
from experiments.pipeline import Step, Steps
from experiments.world.second_language import StatedIn


@dataclasses.dataclass(frozen=True)
class CrossLingualRow(Row):
  """A row: a run, and a corpus that its last checkpoint searches.

  Attributes:
    run: Name of the run.
    corpus: Corpus to search.
    evaluation: Recipe of the evaluation.
  """

  part: str = "cross_lingual"
  run: str = "both/pretraining"
  corpus: str = CORPUS
  evaluation: str = "eval_statements"
  pretrains = False


@dataclasses.dataclass(frozen=True)
class CrossLingualConfig(AblationConfig):
  """Rows in worlds with two languages.

  In training, REALM's row searches both languages.
  """

  row: ClassVar[type[Row]] = CrossLingualRow

  def results(
    self, steps: SeedSteps, row: CrossLingualRow
  ) -> Iterator[tuple[str, Step]]:
    """Yields the evaluations of statements, by the languages of their facts."""
    run, corpus = _runs(steps)[row.run], steps.path(row.corpus)
    name = f"snapshots/{row.name}"
    snapshot = steps.build_index(run, name, CORPUS_DIR=corpus)
    for stated_in in get_args(StatedIn):
      questions = steps.path(f"world/statements-{stated_in}.jsonl")
      evaluation = steps.evaluate(
        *(f"{row.name}/{stated_in}", row.evaluation, run, snapshot),
        CORPUS_DIR=corpus,
        QUESTIONS=questions,
      )
      yield stated_in, evaluation


def _runs(steps: Steps) -> dict[str, Step]:
  """Returns the possible runs of rows, by name."""
  own_corpus, high = steps.path(OWN_CORPUS), steps.path(HIGH_CORPUS)
  cloze, runs = "inverse_cloze", {}
  # One language after the other. Otherwise the negatives of a batch would teach
  # the retriever to prefer blocks in the query's language.
  first = steps.train(f"both/{cloze}_high", cloze, CORPUS_DIR=high)
  for name, corpus, start in (
    ("own", own_corpus, None),
    ("both", steps.corpus_dir, first),
  ):
    retriever = steps.train(
      f"{name}/{cloze}", cloze, start, CORPUS_DIR=own_corpus
    )
    reader = steps.train(f"{name}/reading", "reading", CORPUS_DIR=corpus)
    # Starting from a reader, these runs search one of the corpora for masked
    # sentences of the own language.
    for run, recipe, searched in (
      (f"{name}/reading_retrieved", "reading_retrieved", corpus),
      (f"{name}/pretraining", "pretraining", corpus),
      (f"{name}/pretraining_on_own", "pretraining", own_corpus),
    ):
      builder = steps.builder(run, MODE="every", CORPUS_DIR=searched)
      runs[run] = steps.train(
        *(run, recipe, retriever, reader, builder),
        CORPUS_DIR=searched,
        PRETRAINING_CORPUS_DIR=own_corpus,
      )
      reader = runs[f"{name}/reading_retrieved"]
  return runs
