"""Fine-tunes MiniLM on judged passages, with ours and sentence-transformers.

    python -m benchmarks.contrastive --directory=out/contrastive

Questions from XQuAD and QED retrieve their paragraphs among these paragraphs
and WikiText-2. Questions about two fifths of the paragraphs are held out. All
systems train on the same pairs, with the same batch, steps, learning rate and
schedule, and are evaluated by `realm_jax.evaluate`. MiniLM was trained on the
training questions of SQuAD and Natural Questions, so the results compare
systems, but are too high for a retriever that has not seen them.

Finished parts in --directory are reused. Nothing else should run meanwhile.
"""

import contextlib
import json
import random
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.numpy

from benchmarks import flags
from benchmarks.data.real_texts import TEXTS_DIR, judged_paragraphs
from harness import peer_processes
from harness.jobs import Job, Macro, gin_command
from realm_jax.console import columns
from realm_jax.evaluation.outputs import METRICS
from realm_jax.evaluation.scores import RETRIEVED
from realm_jax.text.vocabulary_files import TOKENIZER_CONFIG
from realm_jax.weights.hf_files import CONFIG
from realm_jax.weights.tensor_files import WEIGHTS

_BLOCK_LENGTH, _HELD_OUT, _RERANK_DEPTH = 256, 0.4, 10
_SHOWN = ("ndcg_at_10", "recall_at_1", "examples_per_second")
_MINED = {"NUM_HARD_NEGATIVES": 3, "SWAP_SNAPSHOTS": False}


class _Ours(NamedTuple):
  """One of our runs: its recipe, its bindings, and the run it starts from.

  A cross-encoder reads several pairs for each query, and learns from scratch
  what a pair is, so it uses fewer queries and more steps.
  """

  recipe: str = "contrastive"
  bound: Mapping[str, Any] = {}
  start: str = "minilm"
  batch_share: int = 1
  steps_factor: int = 1


_OURS = {
  "ours": _Ours(),
  "ours, hard negatives": _Ours(bound=_MINED),
  "ours, symmetric": _Ours(bound={"SYMMETRIC": True}),
  "ours, reranker": _Ours(
    *("reranking", {**_MINED, "LEARNING_RATE": 1e-4}, "pair"),
    batch_share=4,
    steps_factor=4,
  ),
  "ours, distilled": _Ours("distillation", _MINED, "ours, reranker"),
}
_PEERS = {
  "sentence-transformers, float32": "float32",
  "sentence-transformers, bfloat16": "bfloat16",
}


def write_data(texts_dir: Path, folder: Path) -> None:
  """Writes a folder in BEIR's format, train.jsonl, and pairs.json."""
  documents, questions = judged_paragraphs(texts_dir)
  judged = sorted({number for _, number, _ in questions})
  random.Random(0).shuffle(judged)
  held_out = {*judged[: int(len(judged) * _HELD_OUT)]}
  (folder / "qrels").mkdir(parents=True)
  header = "query-id\tcorpus-id\tscore"
  qrels = {"train": [header], "test": [header]}
  rows, pairs = [], []
  for query, (question, number, answers) in enumerate(questions):
    split = "test" if number in held_out else "train"
    qrels[split].append(f"q{query}\t{number}\t1")
    if split == "train":
      title, text = documents[number]
      passage = {"title": title, "text": text}
      positive = {"query": question, "positive_passages": [passage]}
      rows.append({**positive, "answers": answers})
      pairs.append([question, f"{title} {text}".strip()])
  for split, lines in qrels.items():
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join([*lines, ""]))
  of_corpus = [
    {"_id": str(number), "title": title, "text": text}
    for number, (title, text) in enumerate(documents)
  ]
  queries = [
    # Must differ from documents' ids, because a query does not find its own id.
    {"_id": f"q{number}", "text": question}
    for number, (question, _, _) in enumerate(questions)
  ]
  named = {"corpus": of_corpus, "queries": queries, "train": rows}
  for name, lines in named.items():
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
  (folder / "pairs.json").write_text(json.dumps(pairs), encoding="utf-8")


def _write_cross_encoder(minilm: Path, folder: Path) -> None:
  """Writes MiniLM as a cross-encoder with an untrained classifier."""
  config = json.loads((minilm / CONFIG).read_text())
  config["architectures"] = ["BertForSequenceClassification"]
  (folder / CONFIG).write_text(json.dumps(config | {"id2label": {"0": ""}}))
  for name in ("vocab.txt", TOKENIZER_CONFIG):
    shutil.copy(minilm / name, folder)
  tensors = safetensors.numpy.load_file(minilm / WEIGHTS)
  named = {f"bert.{name}": tensor for name, tensor in tensors.items()}
  safetensors.numpy.save_file(named, folder / WEIGHTS)


def _run(
  module: str, gin_files: Sequence[str], *args: str, **bound: Any
) -> None:
  subprocess.run(gin_command(module, gin_files, *args, **bound), check=True)


class _Comparison:
  """The runs of one directory."""

  def __init__(self, options: Any):
    self._options = options
    self.directory = options.directory.resolve()
    self.data = self.directory / "data"
    self.minilm = peer_processes.minilm_vocabulary().parent

  def imported(self, name: str, weights: Path) -> Path:
    """Imports the weights of a folder as a run."""
    run = self.directory / name
    if not run.exists():
      switches = f"--input={weights}", f"--output_dir={run}", "--score_scale=20"
      _run("import_weights", [], "--from=hf_bert", *switches)
    return run

  def prepare(self) -> Path:
    """Prepares the data and the corpus; returns the run of MiniLM."""
    if not self.data.exists():
      write_data(self._options.texts_dir, self.data)
    start = self.imported("minilm", self.minilm)
    if not (self.directory / "corpus").exists():
      _run(
        *("build_corpus", [], f"--input={self.data}/corpus.jsonl"),
        f"--output_dir={self.directory / 'corpus'}",
        f"--vocab={start / 'vocab.txt'}",
        f"--block_length={_BLOCK_LENGTH}",
      )
    return start

  def start(self, name: str, seed: int) -> Path:
    """Returns the run from which another run starts.

    It is MiniLM, MiniLM with a cross-encoder from MiniLM, or one of our runs.
    """
    if name in _OURS:
      return self.folder(name, seed)
    run = self.directory / name
    if not run.exists():
      with tempfile.TemporaryDirectory() as folder:
        _write_cross_encoder(self.minilm, Path(folder))
        switches = f"--input={folder}", f"--output_dir={run}"
        _run(
          *("import_weights", [], "--from=hf_reranker", *switches),
          f"--retriever={self.directory / 'minilm'}",
          "--ignore=classifier/.*",
        )
    return run

  def folder(self, name: str, seed: int) -> Path:
    """Returns the directory of one of our runs."""
    return self.directory / f"{re.sub('[, ]+', '_', name)}_{seed}"

  def train(self, name: str, seed: int) -> tuple[Path, float]:
    """Trains one of our runs; returns its folder, and examples per second."""
    options, settings = self._options, _OURS[name]
    start, run = self.start(settings.start, seed), self.folder(name, seed)
    steps = options.steps * settings.steps_factor
    where = {"MODEL_DIR": run, "CORPUS_DIR": self.directory / "corpus"}
    command = gin_command(
      *("train", [str(start / CONFIG), f"gin/runs/{settings.recipe}.gin"]),
      **where,
      INITIAL_CHECKPOINT=start,
      TRAIN_QUESTIONS=self.data / "train.jsonl",
      NUM_NEGATIVES=0,
      SEED=seed,
      BATCH_SIZE=options.batch // settings.batch_share,
      BLOCK_LENGTH=_BLOCK_LENGTH,
      WEIGHT_DECAY=0.01,
      NUM_STEPS=steps,
      WARMUP_STEPS=steps // 10,
      SAVE_EVERY_STEPS=steps,
      **settings.bound,
    )
    with contextlib.ExitStack() as stack:
      if "NUM_HARD_NEGATIVES" in settings.bound and not run.exists():
        switches = f"--model_dir={run}", f"--corpus_dir={where['CORPUS_DIR']}"
        builder = Job(
          "build_index",
          gin_command("build_index", [], *switches, INDEX=Macro("EXACT")),
          log=self.directory / "build_index.log",
        )
        builder.start()
        stack.callback(builder.terminate)
      subprocess.run(command, check=True)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    speeds = [json.loads(line)["examples_per_second"] for line in lines]
    return run, statistics.median(speeds)

  def train_peer(self, dtype: str, seed: int) -> tuple[Path, float]:
    """Trains with sentence-transformers, and imports the result."""
    options, name = self._options, f"sentence_transformers_{dtype}_{seed}"
    weights = self.directory / f"{name}_weights"
    speed = weights / "speed.json"
    if not speed.exists():
      printed = peer_processes.run(
        *("fine_tuning", f"--model={self.minilm}", f"--output={weights}"),
        *(f"--input={self.data / 'pairs.json'}", f"--batch={options.batch}"),
        *(f"--steps={options.steps}", f"--warmup={options.steps // 10}"),
        *(f"--seed={seed}", f"--dtype={dtype}"),
      )
      speed.write_text(printed)
    trained = json.loads(speed.read_text())
    return self.imported(name, weights), trained["examples_per_second"]

  def evaluate(self, run: Path) -> dict[str, float]:
    """Builds the index of a run's last checkpoint, and evaluates it."""
    where = {"MODEL_DIR": run, "CORPUS_DIR": self.directory / "corpus"}
    output = run / "eval"
    if not (output / METRICS).exists():
      switches = f"--model_dir={run}", f"--corpus_dir={where['CORPUS_DIR']}"
      exact = {"INDEX": Macro("EXACT")}
      _run("build_index", [], "--once", *switches, **exact)
      _run(
        *("evaluate", ["gin/runs/eval_beir.gin"], *switches),
        BEIR_DIR=self.data,
        BLOCK_LENGTH=_BLOCK_LENGTH,
        RERANK_DEPTH=_RERANK_DEPTH,
        OUTPUT_DIR=output,
      )
    metrics = json.loads((output / METRICS).read_text())
    lines = map(json.loads, (output / RETRIEVED).read_text().splitlines())
    # A question has one relevant document.
    first = [line["evidence"][0]["grade"] > 0 for line in lines]
    return {
      "ndcg_at_10": metrics["ndcg_at_10"],
      "recall_at_1": statistics.fmean(first),
    }


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the comparison."""
  options = flags.parse(
    *(__doc__, argv),
    directory=Path("out/contrastive"),
    texts_dir=TEXTS_DIR,
    batch=32,
    steps=80,
    seeds=(0,),
    systems=(*_OURS, *_PEERS),
  )
  comparison = _Comparison(options)
  start = comparison.prepare()
  results: dict[str, list[dict[str, float]]] = {}
  results["MiniLM"] = [comparison.evaluate(start)]
  for seed in map(int, options.seeds):
    for name in options.systems:
      if name in _OURS:
        run, speed = comparison.train(name, seed)
      else:
        run, speed = comparison.train_peer(_PEERS[name], seed)
      row = {**comparison.evaluate(run), "examples_per_second": speed}
      results.setdefault(name, []).append(row)
      print(f"{name}, seed {seed}: {row}", flush=True)
  header = ["system", *_SHOWN]
  rows = [
    [name, *(statistics.fmean(r[n] for r in metrics if n in r) for n in _SHOWN)]
    for name, metrics in results.items()
    if name != "MiniLM"
  ]
  first = [results["MiniLM"][0].get(name, "") for name in _SHOWN]
  print(columns([header, ["MiniLM", *first], *rows]))
  flags.write(options, results)


if __name__ == "__main__":
  main()
