"""Compares our pre-training step with that of Hugging Face's REALM.

    python -m benchmarks.train_step --json=train_step.json

Each step is measured in a process of its own, so that its memory is measured
alone, one after the other: ours, and Hugging Face's in the environment of
`make peers` (`benchmarks/peers/step.py`). With --corpus_dir (a corpus with
BERT's vocabulary and --block_length=288), our step is also measured on real
text, packed and padded. Both are compared with the machine's peak rate: the
best rate of a matrix product that jax or torch reaches. A step of the paper's
size on an accelerator:

    python -m benchmarks.train_step --dtype=bfloat16 --layers=12 --hidden=768 \
      --heads=12 --inner=3072 --block=288 --joint=352 --batch=16
"""

import argparse
import functools
import json
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta

from benchmarks import peer_processes
from benchmarks.runs.jobs import in_new_process
from realm_jax.console import columns
from realm_jax.models.bert import BertConfig
from realm_jax.models.packing import content_numbers
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.storage.json_files import write_json
from realm_jax.training import optimizer, step
from realm_jax.training.encoder_rows import Candidates, RowLayout, needed_rows
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.pretraining import Pretraining, PretrainingBatch
from realm_jax.training.stages.stage import Models
from realm_jax.training.step import TrainState

_STAGE = Pretraining()
_SIZES = {
  "layers": (4, "layers of each encoder"),
  "hidden": (256, "width of each encoder"),
  "heads": (4, "attention heads"),
  "inner": (1024, "width of the feed-forward layers"),
  "vocab": (30522, "wordpieces in the vocabulary"),
  "batch": (8, "queries in a step"),
  "candidates": (8, "candidates of a query, including the null block"),
  "query": (64, "tokens of a query"),
  "block": (128, "tokens of a block"),
  "joint": (192, "tokens of a query and a block's body"),
  "masks": (3, "masks in a query"),
}
_REAL_TEXT = {"query": 64, "block": 288, "joint": 352}
_SHOWN = (
  "examples_per_second",
  "peak_memory_gb",
  "useful_gflops_per_second",
  "seconds_per_step",
)
_TARGETS = {
  "speedup": "≥ 3",
  "share_of_matmul": "≥ 0.5",
  "memory_ratio": "≤ 0.33",
  "real_text_speedup": "≥ 1.5",
}

_CLS, _SEP, _FIRST_WORD = 101, 102, 999


def make_models(given: argparse.Namespace) -> Models:
  """Returns a retriever with shared towers, and a reader."""
  bert = BertConfig(
    vocab_size=given.vocab,
    separator_id=_SEP,
    hidden_size=given.hidden,
    num_layers=given.layers,
    num_heads=given.heads,
    intermediate_size=given.inner,
    dropout_rate=given.dropout,
    dtype=jnp.dtype(given.dtype),
    attention=given.attention,
  )
  retriever = Retriever(bert, projection_dropout_rate=given.dropout)
  return Models(retriever, Reader(bert, joint_length=given.joint))


def random_batch(
  given: argparse.Namespace, rng: np.random.Generator
) -> PretrainingBatch:
  """Draws queries and blocks without padding; candidate 0 is the null block."""
  query = _words(given, rng, given.batch, given.query)
  query[:, 0], query[:, -1] = _CLS, _SEP
  # The title is empty, so the reader's input is the query and the whole body.
  shape = given.batch, given.candidates, given.block
  candidates = _words(given, rng, *shape)
  candidates[..., 0], candidates[..., 1], candidates[..., -1] = _CLS, _SEP, _SEP
  candidates[:, 0] = 0
  candidates[:, 0, :3] = _CLS, _SEP, _SEP
  return _masked(given, rng, query, candidates)


def _words(
  given: argparse.Namespace, rng: np.random.Generator, *shape: int
) -> np.ndarray:
  return rng.integers(_FIRST_WORD, given.vocab, shape).astype(np.int32)


def _masked(
  given: argparse.Namespace,
  rng: np.random.Generator,
  query: np.ndarray,
  candidates: np.ndarray,
) -> PretrainingBatch:
  shape = (given.batch, given.masks)
  masks = MaskTargets(
    np.broadcast_to(np.arange(1, 1 + given.masks, dtype=np.int32), shape),
    _words(given, rng, *shape),
    np.ones(shape, np.float32),
  )
  numbered = Candidates(candidates, content_numbers(candidates))
  return PretrainingBatch(query, numbered, masks)


def real_batches(
  given: argparse.Namespace, rng: np.random.Generator
) -> Iterator[PretrainingBatch]:
  """Yields random sentences of a corpus with random blocks as candidates."""
  from realm_jax.corpus.store import Corpus  # Reads text with TensorFlow.

  corpus = Corpus.open(given.corpus_dir)
  while True:
    rows = rng.integers(corpus.num_blocks, size=(given.batch, given.candidates))
    rows[:, 0] = -1
    sources = rng.integers(corpus.num_blocks, size=given.batch)
    query = corpus.random_sentences(sources, given.query, rng)
    candidates = corpus.gather(rows, given.block)
    yield _masked(given, rng, query, candidates)


def sequence_flops(given: argparse.Namespace, length: np.ndarray) -> np.ndarray:
  """Returns the FLOPs of the encoder's matrix products, by sequence length."""
  width, inner = given.hidden, given.inner
  linear = 2 * length * (4 * width * width + 2 * width * inner)
  attention = 4 * length.astype(np.float64) ** 2 * width
  return given.layers * (linear + attention)


def useful(
  given: argparse.Namespace, models: Models, batch: PretrainingBatch
) -> Any:
  """Returns the useful tokens and FLOPs of a step.

  Useful tokens are those that are not padding. The FLOPs are three times those
  of the forward pass's matrix products on them. A block that several queries
  share, such as the null block, counts once in the tower. Words are scored only
  at the masks.
  """
  assert batch.candidates is not None
  query, candidates = batch.query, np.asarray(batch.candidates.tokens)
  distinct = np.unique(candidates.reshape(-1, candidates.shape[-1]), axis=0)
  joint = models.require_reader().join(query, candidates).token_ids
  lengths = [
    np.count_nonzero(text, axis=-1).reshape(-1)
    for text in (query, distinct, joint)
  ]
  width, projection = given.hidden, models.retriever.vector_size
  pooled = 2 * (len(query) + len(distinct)) * width * (width + projection)
  num_masks = given.batch * given.candidates * given.masks
  head = 2 * num_masks * width * (width + given.vocab)
  encoders = sum(sequence_flops(given, part).sum() for part in lengths)
  return sum(part.sum() for part in lengths), 3 * (encoders + pooled + head)


def measure_step(given: argparse.Namespace) -> dict[str, Any]:
  """Compiles, runs and times our step."""
  rng = np.random.default_rng(0)
  models = make_models(given)
  if given.corpus_dir:
    source = real_batches(given, rng)
    batches = [next(source) for _ in range(given.steps + 1)]
  else:
    batches = [random_batch(given, rng)] * (given.steps + 1)
  mesh = make_mesh(devices=jax.devices()[:1])
  rows_of, loss_of = _STAGE.functions(models)
  numbers = jnp.arange(given.batch, dtype=jnp.uint32)
  layout = RowLayout(mesh)
  if given.pack:
    # The step is compiled for as many rows as hold every batch.
    needed = jax.jit(lambda batch: needed_rows(rows_of(batch, numbers)))
    counts = np.max([needed(batch) for batch in batches], axis=0)
    layout = RowLayout(mesh, (tuple(counts.tolist()),))
  update = optimizer.make_optimizer(
    optimizer.OptimizerConfig(learning_rate=3e-5), num_steps=10_000
  )

  @jax.jit
  def init(key: jax.Array) -> TrainState:
    params = meta.unbox(_STAGE.init(models, 16, 16, key))
    return TrainState(jnp.int32(0), params, update.init(params))

  state = init(jax.random.key(0))
  run = jax.jit(
    functools.partial(
      step.train_step,
      rows_of=rows_of,
      loss=loss_of,
      layout=layout,
      optimizer=update,
      seed=0,
    ),
    donate_argnums=0,
  )
  first = sharding.to_devices(batches[0], mesh)
  start = time.perf_counter()
  compiled = run.lower(state, first).compile(cpu_tuning.compiler_options(mesh))
  compile_seconds = time.perf_counter() - start
  cpu_tuning.return_freed_memory()
  analysis = compiled.memory_analysis()
  seconds, tokens, flops, loss = [], 0, 0.0, 0.0
  for on_host in batches:
    batch = jax.block_until_ready(sharding.to_devices(on_host, mesh))
    start = time.perf_counter()
    state, metrics = jax.block_until_ready(compiled(state, batch))
    seconds.append(time.perf_counter() - start)
    loss = float(metrics["loss"])
    of_tokens, of_flops = useful(given, models, on_host)
    tokens, flops = tokens + int(of_tokens), flops + float(of_flops)
  memory = jax.devices()[0].memory_stats()  # None on CPUs.
  peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  if memory:
    peak = memory["peak_bytes_in_use"]
  timed, total = seconds[1:], sum(seconds[1:])
  per_step = flops / len(batches)
  median = statistics.median(timed)
  return {
    "seconds_per_step": median,
    "step_seconds": timed,
    "examples_per_second": given.batch / median,
    "useful_tokens_per_second": tokens / len(batches) / (total / len(timed)),
    "useful_gflop_per_step": per_step / 1e9,
    "useful_gflops_per_second": per_step / median / 1e9,
    "peak_memory_gb": peak / 1e9,
    "temporaries_gb": analysis and analysis.temp_size_in_bytes / 1e9,
    "compile_seconds": compile_seconds,
    "loss": loss,
    "device": jax.devices()[0].device_kind,
    "jax": jax.__version__,
  }


def matmul_gflops_per_second(dtype: str) -> float:
  """Measures jax's best rate of matrix products, of large and step shapes."""
  best = 0.0
  product = jax.jit(jnp.dot)
  large = 8192 if jax.default_backend() != "cpu" else 2048
  for size in ((large,) * 3, (12288, 256, 1024), (12288, 1024, 256)):
    rows, inner, columns = size
    left = jax.random.normal(jax.random.key(0), (rows, inner), dtype)
    right = jax.random.normal(jax.random.key(1), (inner, columns), dtype)
    product(left, right).block_until_ready()
    for _ in range(6):
      start = time.perf_counter()
      product(left, right).block_until_ready()
      seconds = time.perf_counter() - start
      best = max(best, 2e-9 * rows * inner * columns / seconds)
  return best


def _own_step(given: argparse.Namespace) -> dict[str, Any]:
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  found = measure_step(given)
  # After the step, so that it does not raise the step's peak memory.
  found["matmul_gflops_per_second"] = matmul_gflops_per_second(given.dtype)
  return found


def compare(given: argparse.Namespace) -> dict[str, Any]:
  """Measures each step in a process of its own; returns the figures by name."""
  sizes = {name: getattr(given, name) for name in (*_SIZES, "dropout")}
  synthetic = argparse.Namespace(**{**vars(given), "corpus_dir": None})
  ours = in_new_process(_own_step, synthetic)
  ceiling = ours["matmul_gflops_per_second"]
  found = {f"ours_{name}": ours[name] for name in _SHOWN}
  if peer_processes.installed():
    printed = peer_processes.run(
      *("step", f"--steps={given.hf_steps}"),
      f"--sizes={json.dumps(sizes)}",
    )
    theirs = json.loads(printed.splitlines()[-1])
    ceiling = max(ceiling, theirs["matmul_gflops_per_second"])
    # Their step does the same useful arithmetic.
    useful = ours["useful_gflop_per_step"] / theirs["seconds_per_step"]
    theirs["useful_gflops_per_second"] = useful
    found |= {f"hf_{name}": theirs[name] for name in _SHOWN}
    found["speedup"] = (
      ours["examples_per_second"] / theirs["examples_per_second"]
    )
    found["memory_ratio"] = ours["peak_memory_gb"] / theirs["peak_memory_gb"]
  found["matmul_gflops_per_second"] = ceiling
  found["share_of_matmul"] = ours["useful_gflops_per_second"] / ceiling
  if given.corpus_dir:
    packed, padded = (
      in_new_process(
        _own_step,
        argparse.Namespace(**{**vars(given), **_REAL_TEXT, "pack": pack}),
      )["useful_tokens_per_second"]
      for pack in (True, False)
    )
    found["real_text_packed_tokens_per_second"] = packed
    found["real_text_padded_tokens_per_second"] = padded
    found["real_text_speedup"] = packed / padded
  return found


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  for name, (size, what) in _SIZES.items():
    parser.add_argument(f"--{name}", type=int, default=size, help=what)
  parser.add_argument("--dropout", type=float, default=0.1, help="dropout rate")
  parser.add_argument("--dtype", default="float32", help="type of our products")
  parser.add_argument(
    "--attention", default="xla", help="xla, or cudnn without dropout"
  )
  parser.set_defaults(pack=True)
  parser.add_argument(
    "--steps", type=int, default=7, help="measured steps of ours"
  )
  parser.add_argument(
    "--hf_steps", type=int, default=3, help="measured steps of theirs"
  )
  parser.add_argument("--corpus_dir", type=Path, help="corpus of the real text")
  parser.add_argument("--json", type=Path, help="file to write the figures to")
  given = parser.parse_args(argv)
  if not peer_processes.installed():
    print(
      "Hugging Face is not installed (run `make peers`); measuring ours only"
    )
  result = compare(given)
  print(columns([(n, v, _TARGETS.get(n, "")) for n, v in result.items()]))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
