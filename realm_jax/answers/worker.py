"""A process that searches its share of the rows for answers.

    python -m realm_jax.answers.worker PLAN.json NUMBER

It imports neither TensorFlow nor jax, and prints the numbers of rows that it
has done. Matching holds Python's lock, so that threads would not do.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

from realm_jax.answers.distinct import DistinctAnswers
from realm_jax.answers.matcher import BlockMatcher
from realm_jax.answers.runs import Runs, write_runs
from realm_jax.corpus.store import Corpus


@dataclasses.dataclass(frozen=True)
class Plan:
  """What to search for, and where.

  Attributes:
    corpus: Corpus to search.
    answers: Answers to look for.
    folder: Directory to write runs to.
    num_workers: Number of shares that the rows are divided into.
  """

  corpus: Corpus
  answers: DistinctAnswers
  folder: Path
  num_workers: int

  def rows(self, worker: int) -> range:
    """Returns the rows of a worker; those of the next follow them."""
    bounds = [
      self.corpus.num_blocks * number // self.num_workers
      for number in (worker, worker + 1)
    ]
    return range(*bounds)

  def path(self, worker: int) -> Path:
    """Returns the file of a worker's runs."""
    return self.folder / f"{worker}.keys"

  def save(self) -> Path:
    """Writes the plan to its folder."""
    fields = {
      "corpus": str(self.corpus.source),
      "version": self.corpus.version,
      "fingerprint": self.corpus.fingerprint,
      "answers": self.answers.strings,
      "num_workers": self.num_workers,
    }
    path = self.folder / "plan.json"
    path.write_text(json.dumps(fields))
    return path

  @classmethod
  def load(cls, path: Path) -> "Plan":
    """Reads what `save` wrote."""
    fields = json.loads(path.read_text())
    corpus = Corpus.open(
      fields["corpus"],
      version=fields["version"],
      fingerprint=fields["fingerprint"],
    )
    answers = DistinctAnswers(tuple(fields["answers"]))
    return cls(corpus, answers, path.parent, fields["num_workers"])

  def runs(self) -> list[Runs]:
    """Reads the runs of all workers, in the order of the rows."""
    return [Runs.load(self.path(i)) for i in range(self.num_workers)]


def main(plan_path: str, number: str) -> None:
  """Searches one share of the rows."""
  plan, worker = Plan.load(Path(plan_path)), int(number)

  def advance(count: int) -> None:
    # One write a line, since the processes share a pipe.
    os.write(sys.stdout.fileno(), f"{count}\n".encode())

  write_runs(
    plan.path(worker),
    BlockMatcher(plan.answers),
    plan.corpus,
    plan.rows(worker),
    advance=advance,
  ).save()


if __name__ == "__main__":
  main(*sys.argv[1:])
