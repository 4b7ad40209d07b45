"""Systems for questions of two hops, and the report."""

from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.comparing import Comparison, SystemSteps
from experiments.data import read_lines
from experiments.demo.stages import demo_worlds
from experiments.pipeline import Step, run, run_in_cpu_seconds
from realm_jax.evaluation.scores import PREDICTIONS

_LENGTHS = "experiments/gin/two_hops/lengths.gin"
# Recipe that builds the index for two hops.
_BUILDER = "build_index_two_hops"
# Questions of two hops, for training (with questions of one hop) and for the
# evaluation.
_TRAIN, _CHAINS = "chains-all", "chains-test"
_TRAIN_SINGLE, _SINGLE = "chains-one", "questions-test"


class TwoHopSteps(SystemSteps):
  """The steps of all systems, in the folder of a seed."""

  gin_folders = "demo", "two_hops"
  after_recipes = (_LENGTHS,)

  def world(self, name: str) -> str:
    """Returns the path of a file of questions."""
    return self.path(f"world/{name}.jsonl")

  def common_start(self) -> Step:
    """Trains the common start of all systems, and returns it: REALM, one hop.

    It has not seen questions of two hops, because it would memorize which pages
    answer the training questions.
    """
    name = "pretrain"
    realm = self.train(name, name, *self.start(), self.builder(name))
    name = "start"
    return run(
      self.train(
        *(name, "open_qa", realm, realm, self.first_snapshot(name)),
        TRAIN_QUESTIONS=self.world(_TRAIN_SINGLE),
      )
    )

  def metrics_of(
    self, name: str, recipe: str, of: Step, snapshot: Step | None = None
  ) -> dict[str, float]:
    """Evaluates a run on the test questions of two hops and of one hop."""
    of_both = {}
    for questions in (_CHAINS, _SINGLE):
      evaluation = self.evaluate(
        *(f"{name}/{questions}", recipe, of, snapshot),
        QUESTIONS=self.world(questions),
      )
      metrics = run(evaluation).metrics()
      if questions == _SINGLE:
        of_both["exact_match_one_hop"] = metrics["exact_match"]
      else:
        of_both["exact_match"] = metrics["exact_match"]
        of_both["path_recall"] = _path_recall(
          evaluation.folder / PREDICTIONS, Path(self.world(_CHAINS))
        )
    return of_both

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
  is_found = []
  for line in read_lines(predictions):
    read = [one["block"] for one in line["evidence"] if one["read"]]
    names = {
      part.rpartition(":")[0] for one in read for part in one.split(" → ")
    }
    hops = paths[line["id"]]
    is_found.append(all(not names.isdisjoint(documents) for documents in hops))
  return sum(is_found) / len(is_found)


# --- Systems ------------------------------------------------------------


def _start(steps: TwoHopSteps) -> dict[str, float]:
  """The common start."""
  return steps.metrics_of("start", "eval_one_hop", steps.common_start())


def _one_hop(steps: TwoHopSteps) -> dict[str, float]:
  """REALM with one hop, trained further; it reads equally many blocks."""
  name, start = "one_hop", steps.common_start()
  training = steps.train(
    *(name, "one_hop_qa", start, start),
    steps.first_snapshot(name),
    TRAIN_QUESTIONS=steps.world(_TRAIN),
  )
  seconds = run_in_cpu_seconds(training)
  metrics = steps.metrics_of(name, "eval_one_hop", training)
  return metrics | {"cpu_seconds": seconds}


def _two_hops(steps: TwoHopSteps) -> dict[str, float]:
  """Two hops, learned only from the answers."""
  training = _two_hop_run(steps)
  seconds = run_in_cpu_seconds(training)
  snapshot = steps.last_snapshot(training, _BUILDER)
  metrics = steps.metrics_of("two_hops", "eval_two_hops", training, snapshot)
  return metrics | {"cpu_seconds": seconds}


def _bm25(steps: TwoHopSteps) -> dict[str, float]:
  """Two rounds of BM25, with the reader of two hops."""
  training = _two_hop_run(steps)
  run_in_cpu_seconds(training)
  snapshot = steps.last_snapshot(training, f"{_BUILDER}_bm25")
  return steps.metrics_of("bm25", "eval_two_hops", training, snapshot)


def _two_hop_run(steps: TwoHopSteps) -> Step:
  name, start = "two_hops", steps.common_start()
  return steps.train(
    *(name, "two_hop_qa", start, start),
    steps.builder(name, _BUILDER),
    TRAIN_QUESTIONS=steps.world(_TRAIN),
  )


def _path_retriever(steps: TwoHopSteps) -> dict[str, float]:
  """A path retriever and a path reader, trained on gold paths."""
  start = steps.common_start()
  gold = {"TRAIN_QUESTIONS": steps.world("chains-gold")}
  name = "path_retriever"
  retriever = steps.train(
    *(name, name, start, None), steps.first_snapshot(name), **gold
  )
  seconds = run_in_cpu_seconds(retriever)
  name = "path_reading"
  reader = steps.train(
    *(name, name, retriever, start), steps.first_snapshot(name), **gold
  )
  seconds += run_in_cpu_seconds(reader)
  metrics = steps.metrics_of("paths", "eval_paths", reader)
  return metrics | {"cpu_seconds": seconds}


_SYSTEMS: Mapping[str, tuple[str, Callable[[TwoHopSteps], dict[str, float]]]]
_SYSTEMS = {
  "start": ("REALM of one hop, from which all start", _start),
  "one_hop": ("REALM of one hop, 12 blocks", _one_hop),
  "path_retriever": ("PathRetriever, with gold paths", _path_retriever),
  "bm25": ("two rounds of BM25, the reader of two hops", _bm25),
  "two_hops": ("two hops, without gold paths", _two_hops),
}


COMPARISON = Comparison(
  "two_hops",
  {name: title for name, (title, _) in _SYSTEMS.items()},
  ("path_recall", "exact_match", "exact_match_one_hop", "cpu_seconds"),
  lambda gin_files: demo_worlds(
    ["experiments/gin/two_hops/world.gin", _LENGTHS, *gin_files]
  ),
  lambda name, seed: _SYSTEMS[name][1](
    TwoHopSteps(seed.folder, seed.number, seed.gin_files)
  ),
)
