"""The stages of training in layouts of processes and devices, each run once."""

import dataclasses
from pathlib import Path
from typing import Any

from benchmarks.data import demo_corpus
from benchmarks.fixed_tree import fixed_tree
from benchmarks.runs.groups import GroupRun, Layout, started, wait_for_end
from benchmarks.runs.jobs import Job, wait_until

REFERENCE = Layout(1, 1)
_MODEL = "benchmarks/soak.gin"
_NUM_STEPS = 20
# The retriever that the later stages begin with. One of a few steps gives all
# blocks the same score up to rounding: each layout would then take others.
_RETRIEVER = "retriever"
_RETRIEVER_SETTINGS = {
  "NUM_STEPS": 300,
  "SAVE_EVERY_STEPS": 300,
  "BATCH_SIZE": 64,
  "LEARNING_RATE": 3e-3,
  "WARMUP_STEPS": 100,
}
# A given tree, because so few blocks would otherwise be searched without one.
TREE = {
  f"scann.ScannConfig.{name}": value
  for name, value in dataclasses.asdict(
    fixed_tree(
      16,
      num_leaves_searched=8,
      num_reordered=64,
      reordering="float32",
      reuse=True,
    )
  ).items()
}


class LayoutRuns:
  """Runs of the stages in all layouts, each of which is done at most once.

  Args:
    directory: Empty folder, which is given a corpus and the runs.
  """

  def __init__(self, directory: Path):
    self.directory = directory
    self.corpus_dir = demo_corpus.make_corpus(directory, scale=0.25)
    self._done: dict[str, GroupRun] = {}

  def run(self, layout: Layout, stage: str, index: str | None) -> GroupRun:
    """Returns the finished run of a stage.

    All layouts search the generation of the reference, which is built from
    checkpoint 0.
    """
    name = folder_name(layout, stage, index)
    if name not in self._done:
      run = self.new(name, layout, stage, index)
      if index is None:
        train(run)
      elif layout == REFERENCE:
        train_and_index(run)
      else:
        run.copy_start_of(self.run(REFERENCE, stage, index))
        train(run)
      self._done[name] = run
    return self._done[name]

  def new(
    self,
    name: str,
    layout: Layout,
    stage: str,
    index: str | None,
    **settings: Any,
  ) -> GroupRun:
    """Returns a run that was not started."""
    return GroupRun(
      directory=self.directory / name,
      corpus_dir=self.corpus_dir,
      recipe=stage,
      model=_MODEL,
      layout=layout,
      settings={
        "NUM_STEPS": _NUM_STEPS,
        "SAVE_EVERY_STEPS": 5,
        "KEEP_CHECKPOINTS": _NUM_STEPS,
        "BATCH_SIZE": 8,
        "LEARNING_RATE": 1e-3,
        "WARMUP_STEPS": 2,
        **self._stage_settings(stage),
        **settings,
      },
      index=index or "EXACT",
      index_settings=TREE if index == "SCANN" else {},
      environment={
        # Otherwise each start of a trainer would compile for ten seconds.
        "JAX_COMPILATION_CACHE_DIR": str(self.directory / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
      },
    )

  def _retriever(self) -> GroupRun:
    if _RETRIEVER not in self._done:
      run = self.new(
        _RETRIEVER, REFERENCE, "inverse_cloze", None, **_RETRIEVER_SETTINGS
      )
      train(run)
      self._done[_RETRIEVER] = run
    return self._done[_RETRIEVER]

  def _stage_settings(self, stage: str) -> dict[str, Any]:
    def before(earlier: str, index: str | None = None) -> Path:
      return self.run(REFERENCE, earlier, index).model_dir

    if stage == "pretrain":
      return {
        "NUM_CANDIDATES": 4,
        "INITIAL_CHECKPOINT": self._retriever().model_dir,
        "INITIAL_READER": before("reading"),
      }
    if stage == "open_qa":
      questions = self.directory / "world" / "questions-train.jsonl"
      return {
        "NUM_SEARCHED": 20,
        "NUM_READ": 3,
        "TRAIN_QUESTIONS": questions,
        "INITIAL_CHECKPOINT": before("pretrain", "EXACT"),
      }
    return {}


def folder_name(layout: Layout, stage: str, index: str | None) -> str:
  """Returns the name of a run's folder."""
  words = [stage, (index or "").lower(), str(layout).replace("×", "x")]
  return "_".join("_".join(words).split())


def train(run: GroupRun) -> None:
  """Runs a trainer to its end."""
  group = run.trainers()
  with started(*group):
    wait_for_end(group)


def train_and_index(run: GroupRun) -> None:
  """Runs a trainer to its end, which waits for its one generation."""
  group, builder = run.trainers(), run.builder("--once")
  with started(*group):
    wait_for_checkpoint(run, 0, *group)
    with started(builder):
      wait_for_end(group, builder)


def wait_for_checkpoint(run: GroupRun, step: int, *jobs: Job) -> None:
  """Waits for a checkpoint of a step, or a later one."""
  wait_until(
    lambda: max(run.checkpoint_steps(), default=-1) >= step,
    what=f"checkpoint {step}",
    jobs=jobs,
  )


def log_of(run: GroupRun, process: int) -> str:
  """Returns the log of a process of the trainer."""
  log = run.directory / f"trainer{process}.log"
  return log.read_text(errors="replace")


def logs_of(run: GroupRun) -> list[str]:
  """Returns the logs of all processes of the trainer."""
  return [log_of(run, process) for process in range(run.layout.processes)]
