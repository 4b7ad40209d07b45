"""Whether a served reader teaches a retriever what the same reader does inside.

    python -m benchmarks.served_reader --output_dir=out/served_reader

In the demo's world a T5 learns to read and to answer, and stays as it is from
then on. The retriever of inverse cloze then learns from its likelihoods of the
training questions' answers, once inside of the run, and once over HTTP, from
`harness/served_run.py`, while their indexes are rebuilt every 50 steps. The
report has the recall of the test questions before and after, and how far the
losses of the two runs are apart. About 15 minutes on two idle cores;
--gin_file=experiments/gin/demo/quick.gin tries the machinery.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.demo.stages import demo_worlds
from experiments.pipeline import Step, Value, markdown, run
from experiments.readers.comparison import ReaderSteps
from realm_jax.configuration import command_line

_OUTPUT = flags.DEFINE_string(
  "output_dir", "out/served_reader", "Directory of all runs and the report."
)
_GIN = "experiments/gin"
_TRAINING: dict[str, Value] = {
  "NUM_STEPS": 400,
  "BATCH_SIZE": 16,
  "NUM_READ": 8,
  "OBJECTIVE": "perplexity",
  "OPTIMIZER": "adafactor",
  "LEARNING_RATE": 1e-2,
  "WARMUP_STEPS": 100,
  "STEPS_AHEAD": 1,
  # Both runs search the same snapshots at the same steps.
  "WAIT_FOR_SNAPSHOTS": True,
  "SAVE_EVERY_STEPS": 50,
  "LAG_STEPS": 50,
  # Its masks would differ with the number of components.
  "DROPOUT_RATE": 0.0,
}


def _steps(folder: Path, gin_files: Sequence[str]) -> ReaderSteps:
  """Returns the steps of a T5 in the demo's world, with settings from here."""
  steps = ReaderSteps("fid", folder, 0, gin_files)
  readers = [f"{_GIN}/readers/{name}.gin" for name in ("model", "questions")]
  demo = [f"{_GIN}/demo/model.gin"]
  recipes = {
    "inside": ["gin/runs/text_to_text.gin", *readers],
    "served": [*demo, "gin/runs/served_reader.gin"],
    "eval_retrieval": [f"{_GIN}/demo/eval_retrieval.gin"],
  }
  extra = {name: [*files, *gin_files] for name, files in recipes.items()}
  steps.recipes = {**steps.recipes, **extra}
  return steps


def _reader(steps: ReaderSteps, retriever: Step) -> Step:
  """Trains the reader, which answers questions from retrieved blocks."""
  reading = run(steps.stage("reading", retriever, None))
  reading = run(steps.stage("reading_retrieved", retriever, reading))
  return run(
    steps.train(
      *("reader", "open_qa", retriever, reading),
      steps.first_snapshot("reader"),
      TRAIN_QUESTIONS=steps.path("world/questions-train.jsonl"),
      FREEZE_RETRIEVER_STEPS=1 << 30,
    )
  )


def compare(folder: Path, gin_files: Sequence[str]) -> dict[str, Any]:
  """Trains both retrievers, and returns the metrics of the report."""
  import realm_jax
  from harness.served_run import TEMPLATES, ServedRun
  from realm_jax.training.metric_rows import read_rows

  demo_worlds([f"{_GIN}/readers/world.gin", *gin_files]).prepare(folder, 0)
  steps = _steps(folder, gin_files)
  retriever = run(steps.train("inverse_cloze", "inverse_cloze"))
  reader = _reader(steps, retriever)
  # What a file binds that tries the machinery.
  sizes = (
    {"NUM_STEPS", "BATCH_SIZE", "WARMUP_STEPS", "SAVE_EVERY_STEPS"}
    if gin_files
    else set()
  )
  given = {n: value for n, value in _TRAINING.items() if n not in sizes}
  given["TRAIN_QUESTIONS"] = steps.path("world/questions-train.jsonl")
  trained = {"before": retriever}
  with ServedRun(realm_jax.load(reader.folder)) as server:
    sources: dict[str, dict[str, Value]] = {
      "inside": {"FREEZE_READER": True},
      "served": {
        "READER_URL": server.url,
        "READER_MODEL": "t5",
        "SCORE_CACHE": steps.path("scores.sqlite"),
        **TEMPLATES,
      },
    }
    for name, settings in sources.items():
      starts = reader if name == "inside" else None
      training = steps.train(
        *(name, name, retriever, starts, steps.builder(name)),
        **given,
        **settings,
      )
      trained[name] = run(training)
  recall = {}
  for name, training in trained.items():
    last = read_rows(training.folder)[-1]["step"]
    index = run(
      steps.build_index(training, f"{name}-snapshots", CHECKPOINT_STEP=last)
    )
    evaluation = steps.evaluate(
      *(f"{name}-retrieval", "eval_retrieval", training, index),
      QUESTIONS=steps.path("world/questions-test.jsonl"),
    )
    metrics = run(evaluation).metrics()
    recall[name] = [metrics["recall_at_1"], metrics["recall_at_5"]]
  inside, served = (
    [row["retriever_loss"] for row in read_rows(folder / name)]
    for name in sources
  )
  pairs = zip(inside, served, strict=True)
  apart = max(abs(one - other) for one, other in pairs)
  return {"recall": recall, "losses_apart": apart, "last": inside[-1]}


def main(argv: Sequence[str]) -> None:
  """Runs the comparison; writes and prints the report."""
  del argv
  folder = Path(_OUTPUT.value)
  results = compare(folder, flags.FLAGS.gin_file)
  (folder / "report.json").write_text(json.dumps(results, indent=1) + "\n")
  rows: list[list[object]] = [["retriever", "recall@1", "recall@5"]]
  rows += [[name, *values] for name, values in results["recall"].items()]
  print(f"\n{markdown(rows)}\n\nlosses apart: {results['losses_apart']:.2g}")


if __name__ == "__main__":
  command_line.run(main)
