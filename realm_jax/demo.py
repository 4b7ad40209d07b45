"""The whole story on a generated encyclopedia: `make demo`.

Every stage runs as its command would, with the recipe of that stage under
gin/experiments/demo/, and prints that command; the index builder is a process
of its own. Everything is kept under --output_dir.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from realm_jax import configuration
from realm_jax.console.sigterm import stop_on_sigterm
from realm_jax.corpus.build.corpus import build_corpus
from realm_jax.corpus.build.document_source import DocumentSource
from realm_jax.corpus.build.summary import BuildSummary
from realm_jax.demo_world import edits, report, world
from realm_jax.evaluation import run as evaluation
from realm_jax.partitioning import cpu_tuning
from realm_jax.text.wordpieces import train_vocabulary, write_pieces
from realm_jax.training import loop
from realm_jax.training.config import TrainConfig

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "out/demo", "Where everything the demo makes is kept."
)
_NUM_EDITS = 20
_BLOCK_LENGTH = 56
_VOCABULARY_SIZE = 8000
_RECIPES = "gin/experiments/demo"


class Story:
  """The demo's stages over one output directory.

  Args:
    output_dir: where everything goes.
    extra_gin_files: applied after each stage's recipe.
  """

  def __init__(
    self,
    output_dir: str,
    *,
    extra_gin_files: Sequence[str] = (),
  ):
    self.output_dir = Path(output_dir)
    self._gin_files = list(extra_gin_files)
    self.corpus_dir = str(self.output_dir / "corpus")

  def path(self, name: str) -> str:
    """A file or folder of the story."""
    return str(self.output_dir / name)

  def train(self, name: str, recipe: str, **bindings: Any) -> loop.TrainResult:
    """Trains a stage in its own folder."""
    config = self.run(
      "train", TrainConfig, recipe, MODEL_DIR=self.path(name), **bindings
    )
    result = loop.train(config)
    if result.preempted:
      raise ValueError(f"told to stop in {name}; what is made so far stays")
    return result

  def evaluate(self, name: str, recipe: str, **bindings: Any) -> dict[str, Any]:
    """Measures a stage; figures go to a folder of `evaluations`."""
    return self.run(
      "evaluate",
      evaluation.evaluate,
      recipe,
      OUTPUT_DIR=self.path(f"evaluations/{name}"),
      **bindings,
    )

  def run(
    self, module: str, function: Callable, recipe: str, **bindings: Any
  ) -> Any:
    """Calls what `python -m realm_jax.MODULE` calls, with a recipe."""
    files, given = self._configuration(
      recipe, {"CORPUS_DIR": self.corpus_dir, **bindings}
    )
    print(f"\n$ {_command(module, files, given)}", flush=True)
    with configuration.parsed(files, given):
      return configuration.configured(function)()

  @contextlib.contextmanager
  def index_builder(
    self,
    model_dir: str,
    *,
    recipe: str = "build_index",
    once: bool = False,
    log_dir: str | None = None,
    **bindings: Any,
  ) -> Iterator[None]:
    """The index builder as a second process beside the block.

    With `once` it is waited for; otherwise it follows the checkpoints until
    the block ends. Should it fail, training in the block is told to stop.

    Raises:
      ValueError: it failed.
    """
    files, given = self._configuration(
      recipe,
      {"CORPUS_DIR": self.corpus_dir, "MODEL_DIR": model_dir, **bindings},
    )
    flag = ("--once",) if once else ()
    command = _command("build_index", files, given, *flag)
    log = Path(log_dir or model_dir) / "build_index.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"\n$ {command} &     # log: {log}", flush=True)
    with log.open("w") as output:
      process = subprocess.Popen(
        # Training has the cores first; the builder takes what is left.
        ["nice", "-n", "5", sys.executable, *shlex.split(command)[1:]],
        stdout=output,
        stderr=subprocess.STDOUT,
      )
    failed, over = threading.Event(), threading.Event()

    def watch():
      if process.wait() > 0:
        failed.set()
        # Again and again: training may not be listening yet.
        while not over.wait(1.0):
          os.kill(os.getpid(), signal.SIGTERM)

    with stop_on_sigterm() as stop:
      watching = threading.Thread(target=watch)
      watching.start()
      try:
        yield
        if once:
          process.wait()
      except ValueError:
        if not failed.is_set():
          raise
      finally:
        over.set()
        process.terminate()
        watching.join()
    if failed.is_set():
      raise ValueError(f"the index builder failed; see {log}")
    if stop.is_set():
      raise ValueError("told to stop; what is made so far stays")

  def _configuration(
    self, recipe: str, bindings: dict[str, Any]
  ) -> tuple[list[str], list[str]]:
    files = [f"{_RECIPES}/{recipe}.gin", *self._gin_files]
    given = [f"{name} = {_as_gin(value)}" for name, value in bindings.items()]
    return files, given


def _as_gin(value: Any) -> str:
  return json.dumps(value) if isinstance(value, str) else repr(value)


def _command(
  module: str, files: Sequence[str], bindings: Sequence[str], *more: str
) -> str:
  arguments = [f"--gin_file={file}" for file in files]
  for binding in bindings:
    name, _, value = binding.partition(" = ")
    arguments.append(f"--gin.{name}={value}")
  return shlex.join(["python", "-m", f"realm_jax.{module}", *more, *arguments])


def tell(story: Story) -> dict[str, Any]:
  """Runs every stage and control; returns the figures of the report."""
  began = time.monotonic()
  questions = {
    split: story.path(f"world/questions-{split}.jsonl")
    for split in ("train", "test")
  }
  _say("A fictional encyclopedia, its corpus and its wordpieces")
  with configuration.parsed([f"{_RECIPES}/world.gin"], []):
    encyclopedia = configuration.configured(world.generate)()
  world.write_world(story.path("world"), world=encyclopedia)
  _train_vocabulary(story, [q.text for q in encyclopedia.questions["train"]])
  _build_corpus(story, "world", story.corpus_dir)

  _say("Inverse cloze: the retriever learns to find a sentence's block")
  story.train("inverse_cloze", "inverse_cloze")

  _say("Reading: the reader learns to fill in words from a block")
  story.train("reading", "reading")

  _say("REALM pre-training: both learn, and the index follows them")
  with story.index_builder(story.path("realm")):
    pretrained = story.train(
      "realm",
      "pretrain",
      INITIAL_CHECKPOINT=story.path("inverse_cloze"),
      INITIAL_READER=story.path("reading"),
    )
  masked = story.evaluate(
    "masked", "eval_masked", MODEL_DIR=story.path("realm")
  )

  def answering(name: str, *, retriever: str | None):
    start = {"INITIAL_READER": story.path("realm")}
    if retriever:
      bindings = {}
      start["INITIAL_CHECKPOINT"] = story.path(retriever)
      builder = story.index_builder(story.path(name), once=True)
    else:
      # BM25 brings scores of its own, so the run has no towers; those of a
      # generation, which nothing then reads, are the inverse-cloze ones.
      bindings = {"INDEX_SCORES": True}
      builder = story.index_builder(
        story.path("realm"),
        once=True,
        recipe="build_index_bm25",
        log_dir=story.path(name),
        GENERATIONS_DIR=story.path(f"{name}/generations"),
        CHECKPOINT_STEP=0,
      )
    with builder:
      story.train(
        name,
        "open_qa",
        TRAIN_QUESTIONS=questions["train"],
        **start,
        **bindings,
      )
    return story.evaluate(
      name,
      "eval",
      MODEL_DIR=story.path(name),
      QUESTIONS=questions["test"],
      **bindings,
    )

  _say("Open QA from the REALM retriever")
  realm = answering("open_qa", retriever="realm")
  _say("Control: the same reader, given random blocks")
  random_blocks = story.evaluate(
    "random_blocks",
    "eval",
    MODEL_DIR=story.path("open_qa"),
    QUESTIONS=questions["test"],
    CANDIDATES="random",
  )
  _say("Control: the inverse-cloze retriever, without REALM pre-training")
  ict_only = answering("ict_only", retriever="inverse_cloze")
  _say("Control: BM25, with a reader trained on its blocks")
  bm25 = answering("bm25", retriever=None)

  _say(f"{_NUM_EDITS} facts change in the corpus; nothing is trained")
  edited_world, _ = changed = edits.edit_facts(
    encyclopedia, count=_NUM_EDITS, seed=0
  )
  edits.write_edited(
    story.path("edited_world"), world=edited_world, edits=changed[1]
  )
  edited_corpus = story.path("edited_corpus")
  _build_corpus(story, "edited_world", edited_corpus)
  generations = story.path("edited_generations")
  with story.index_builder(
    story.path("open_qa"),
    once=True,
    CORPUS_DIR=edited_corpus,
    GENERATIONS_DIR=generations,
    CHECKPOINT_STEP=0,
  ):
    pass
  edited = story.evaluate(
    "edited",
    "eval",
    MODEL_DIR=story.path("open_qa"),
    CORPUS_DIR=edited_corpus,
    GENERATION=generations,
    QUESTIONS=story.path("edited_world/questions-edited.jsonl"),
  )

  def shown(figures: dict[str, Any]) -> dict[str, float]:
    return {name: figures[name] for name in ("exact_match", "recall_at_5")}

  return {
    "realm": shown(realm),
    "random_blocks": shown(random_blocks),
    "bm25": shown(bm25),
    "ict_only": shown(ict_only),
    "masked_accuracy": {
      "with_retrieval": masked["masked_accuracy"],
      "null_only": masked["masked_accuracy_null"],
    },
    "edited_facts": {
      "followed": round(edited["exact_match"] * edited["num_questions"]),
      "total": edited["num_questions"],
    },
    "generations_swapped": pretrained.swaps,
    "wall_seconds": round(time.monotonic() - began, 1),
  }


def _train_vocabulary(story: Story, questions: Sequence[str]) -> None:
  """Wordpieces of the articles and the training questions together."""
  texts = list(questions)
  source = DocumentSource([story.path("world/articles.jsonl")])
  for document in source.documents(BuildSummary()):
    texts += [document.title, document.text]
  pieces = train_vocabulary(texts, _VOCABULARY_SIZE)
  write_pieces(story.path("vocab.txt"), pieces)


def _build_corpus(story: Story, folder: str, corpus_dir: str) -> None:
  articles, vocab = story.path(f"{folder}/articles.jsonl"), "vocab.txt"
  print(
    f"\n$ python -m realm_jax.build_corpus --input={articles} "
    f"--output_dir={corpus_dir} --vocab={story.path(vocab)} "
    f"--block_length={_BLOCK_LENGTH}",
    flush=True,
  )
  summary = build_corpus(
    [articles],
    corpus_dir,
    vocab=story.path(vocab),
    block_length=_BLOCK_LENGTH,
  )
  print(summary.table())


def _say(title: str) -> None:
  print(f"\n=== {title}", flush=True)


def main(argv: Sequence[str]) -> None:
  """Tells the story and writes the report."""
  del argv
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  output_dir = Path(_OUTPUT_DIR.value)
  if output_dir.exists() and any(output_dir.iterdir()):
    raise ValueError(
      f"{output_dir} is not empty; remove it, or choose another --output_dir"
    )
  gin_files, bindings = configuration.given()
  if bindings:
    raise ValueError(
      f"{bindings[0]!r}: each stage of the demo has other names to bind; put "
      "bindings into a file, as in gin/experiments/demo/quick.gin, and give "
      "--gin_file"
    )
  figures = tell(Story(_OUTPUT_DIR.value, extra_gin_files=gin_files))
  print(report.write(output_dir, figures))


if __name__ == "__main__":
  configuration.run(main)
