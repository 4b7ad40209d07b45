"""Systems for questions of two hops, and the report."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.comparing import Comparison
from experiments.data import CORPUS
from experiments.demo.stages import demo_worlds, read_lines
from experiments.pipeline import (
  Command,
  Step,
  Steps,
  Value,
  run,
  run_in_cpu_seconds,
)
from realm_jax.evaluation.scores import PREDICTIONS

_GIN = Path("experiments/gin")
# Applied after each recipe of the demo.
_LENGTHS = str(_GIN / "two_hops/lengths.gin")
# Recipe that builds the index for two hops.
_BUILDER = "build_index_two_hops"
# Questions of two hops, for training (with questions of one hop) and for the
# evaluation.
_TRAIN, _CHAINS = "chains-all", "chains-test"
_TRAIN_SINGLE, _SINGLE = "chains-one", "questions-test"


class TwoHopSteps(Steps):
  """The steps of all systems, in the folder of a seed."""

  def __init__(self, folder: Path, seed: int, gin_files: Sequence[str]):
    files = [*(_GIN / "demo").glob("*.gin"), *(_GIN / "two_hops").glob("*.gin")]
    recipes = {
      path.stem: [str(path), _LENGTHS, *gin_files] for path in sorted(files)
    }
    seeds: Mapping[str, Value] = {"SEED": seed}
    trained = (
      *("inverse_cloze", "reading", "reading_retrieved", "pretrain"),
      *("open_qa", "one_hop_qa", "two_hop_qa"),
      *("path_retriever", "path_reading"),
    )
    always = dict.fromkeys(trained, seeds)
    super().__init__(folder, recipes, str(folder / CORPUS), always)

  def world(self, name: str) -> str:
    """Returns the path of a file of questions."""
    return self.path(f"world/{name}.jsonl")

  def start(self) -> Step:
    """Returns the common start of all systems: REALM with one hop.

    It has not seen questions of two hops, because it would memorize which pages
    answer the training questions.
    """
    cloze = self.train("inverse_cloze", "inverse_cloze")
    reading = self.train("reading", "reading")
    name = "reading_retrieved"
    reading = self.train(name, name, cloze, reading, self.first_snapshot(name))
    realm = self.train(
      *("pretrain", "pretrain", cloze, reading), self.builder("pretrain")
    )
    return self.train(
      *("start", "open_qa", realm, realm),
      self.first_snapshot("start"),
      TRAIN_QUESTIONS=self.world(_TRAIN_SINGLE),
    )

  def builder(self, name: str, recipe: str = "build_index") -> Command:
    """Returns the command that refreshes the index of a run."""
    return self.command("build_index", recipe, self.folder / name)

  def metrics_of(
    self, name: str, recipe: str, of: Step, snapshot: Step | None = None
  ) -> dict[str, float]:
    """Evaluates a run on the test questions of two hops and of one hop."""
    found = {}
    for questions in (_CHAINS, _SINGLE):
      evaluation = self.evaluate(
        *(f"{name}/{questions}", recipe, of, snapshot),
        QUESTIONS=self.world(questions),
      )
      metrics = run(evaluation).metrics()
      if questions == _SINGLE:
        found["exact_match_one_hop"] = metrics["exact_match"]
      else:
        found["exact_match"] = metrics["exact_match"]
        found["path_recall"] = _path_recall(
          evaluation.folder / PREDICTIONS, Path(self.world(_CHAINS))
        )
    return found

  def last_snapshot(self, of: Step, recipe: str) -> Step:
    """Returns the build of the index of a run's last checkpoint."""
    name = f"{of.folder.name}-{recipe}"
    last = of.command.build().num_steps
    return self.build_index(of, name, recipe, CHECKPOINT_STEP=last)


def _path_recall(predictions: Path, questions: Path) -> float:
  """Returns the share of questions for which the reader reads both facts.

  For each hop, at least one document that states its fact must be read, in any
  of the paths.
  """
  paths = {one["id"]: one["hops"] for one in read_lines(questions)}
  found = []
  for line in read_lines(predictions):
    read = [one["block"] for one in line["evidence"] if one["read"]]
    names = {
      part.rpartition(":")[0] for one in read for part in one.split(" → ")
    }
    hops = paths[line["id"]]
    found.append(all(not names.isdisjoint(documents) for documents in hops))
  return sum(found) / len(found)


# --- Systems ------------------------------------------------------------


def _start(steps: TwoHopSteps) -> dict[str, float]:
  """The common start."""
  return steps.metrics_of("start", "eval_one_hop", steps.start())


def _one_hop(steps: TwoHopSteps) -> dict[str, float]:
  """REALM with one hop, trained further; it reads equally many blocks."""
  name, start = "one_hop", run(steps.start())
  made = steps.train(
    *(name, "one_hop_qa", start, start),
    steps.first_snapshot(name),
    TRAIN_QUESTIONS=steps.world(_TRAIN),
  )
  seconds = run_in_cpu_seconds(made)
  found = steps.metrics_of(name, "eval_one_hop", made)
  return found | {"cpu_seconds": seconds}


def _two_hops(steps: TwoHopSteps) -> dict[str, float]:
  """Two hops, learned only from the answers."""
  made = _two_hop_run(steps)
  seconds = run_in_cpu_seconds(made)
  snapshot = steps.last_snapshot(made, _BUILDER)
  found = steps.metrics_of("two_hops", "eval_two_hops", made, snapshot)
  return found | {"cpu_seconds": seconds}


def _bm25(steps: TwoHopSteps) -> dict[str, float]:
  """Two rounds of BM25, with the reader of two hops."""
  made = _two_hop_run(steps)
  run_in_cpu_seconds(made)
  snapshot = steps.last_snapshot(made, f"{_BUILDER}_bm25")
  return steps.metrics_of("bm25", "eval_two_hops", made, snapshot)


def _two_hop_run(steps: TwoHopSteps) -> Step:
  name, start = "two_hops", run(steps.start())
  return steps.train(
    *(name, "two_hop_qa", start, start),
    steps.builder(name, _BUILDER),
    TRAIN_QUESTIONS=steps.world(_TRAIN),
  )


def _path_retriever(steps: TwoHopSteps) -> dict[str, float]:
  """A path retriever and a path reader, trained on gold paths."""
  start = run(steps.start())
  gold = {"TRAIN_QUESTIONS": steps.world("chains-gold")}
  name = "path_retriever"
  found = steps.train(
    *(name, name, start, None), steps.first_snapshot(name), **gold
  )
  seconds = run_in_cpu_seconds(found)
  name = "path_reading"
  made = steps.train(
    *(name, name, found, start), steps.first_snapshot(name), **gold
  )
  seconds += run_in_cpu_seconds(made)
  metrics = steps.metrics_of("paths", "eval_paths", made)
  return metrics | {"cpu_seconds": seconds}


_SYSTEMS: Mapping[str, tuple[str, Callable[[TwoHopSteps], dict[str, float]]]]
_SYSTEMS = {
  "start": ("REALM of one hop, from which all start", _start),
  "one_hop": ("REALM of one hop, 12 blocks", _one_hop),
  "path_retriever": ("PathRetriever, with gold paths", _path_retriever),
  "bm25": ("two rounds of BM25, the reader of two hops", _bm25),
  "two_hops": ("two hops, without gold paths", _two_hops),
}


COMPARISON = Comparison.of_steps(
  "two_hops",
  _SYSTEMS,
  ("path_recall", "exact_match", "exact_match_one_hop", "cpu_seconds"),
  lambda gin_files: demo_worlds(
    [str(_GIN / "two_hops/world.gin"), _LENGTHS, *gin_files]
  ),
  TwoHopSteps,
)
