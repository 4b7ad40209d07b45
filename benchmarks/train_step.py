"""Compares our pre-training step with two steps in torch.

    python -m benchmarks.train_step --json=train_step.json

Each step is measured in a separate process, because of its memory, one after
the other for --rounds rounds; the medians are reported. Ours is measured with
matrix products in this platform's precision and in float32. The others run in
the environment of `make peers` (`harness/peers/step.py`): a tuned step in
float32 and bfloat16, and Hugging Face's. With --corpus_dir (a corpus with
BERT's vocabulary and --block_length=288), our step is also measured on real
text, packed and padded. A step of the paper's size on an accelerator:

    python -m benchmarks.train_step --dtype=bfloat16 --layers=12 --hidden=768 \
      --heads=12 --inner=3072 --block=288 --joint=352 --batch=16 --rounds=1
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta

from benchmarks import flags
from harness import peer_processes
from harness.peer_processes import in_new_process
from realm_jax.console import columns
from realm_jax.corpus.store import Corpus
from realm_jax.models import matmul
from realm_jax.models.bert import BertConfig
from realm_jax.models.components import Components
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training import optimizer
from realm_jax.training.encoder_inputs import (
  Candidates,
  PackingLayout,
  needed_bins,
)
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.pretraining import Pretraining, PretrainingBatch
from realm_jax.training.state import TrainState
from realm_jax.training.step import TrainStep

_STAGE = Pretraining()
SIZES = {
  "layers": 4,
  "hidden": 256,
  "heads": 4,
  "inner": 1024,
  "vocab": 30522,
  "batch": 8,
  "candidates": 8,
  "query": 64,
  "block": 128,
  "joint": 192,
  "masks": 3,
  "dropout": 0.1,
}
_REAL_TEXT = {"query": 64, "block": 288, "joint": 352}
# Arguments for the steps in torch.
_PEERS = {
  "torch, float32": ("tuned", "--dtype=float32"),
  "torch, bfloat16": ("tuned", "--dtype=bfloat16"),
  "Hugging Face": ("hf",),
}
_TARGETS = {"torch, float32": "≥ 1.3", "torch, bfloat16": "≥ 1.1"}

_CLS, _SEP, _FIRST_WORD = 101, 102, 999
# Rows, inner size and columns of a step's matrix products.
_STEP_PRODUCTS = ((12288, 256, 1024), (12288, 1024, 256))


def make_models(options: argparse.Namespace) -> Components:
  """Returns a retriever with shared towers, and a reader."""
  bert = BertConfig(
    vocab_size=options.vocab,
    separator_id=_SEP,
    hidden_size=options.hidden,
    num_layers=options.layers,
    num_heads=options.heads,
    intermediate_size=options.inner,
    dropout_rate=options.dropout,
    dtype=jnp.dtype(options.dtype),
    attention=options.attention,
  )
  retriever = BertRetriever(bert, projection_dropout_rate=options.dropout)
  reader = BertReader(bert, joint_length=options.joint)
  return Components({"retriever": retriever, "reader": reader})


def random_parameters(retriever: BertRetriever) -> Any:
  """Returns parameters of a retriever."""
  tokens = jnp.ones((1, 3), jnp.int32)
  variables = jax.jit(retriever.init)(jax.random.key(0), tokens, tokens)
  return meta.unbox(variables["params"])


def batches_of(
  options: argparse.Namespace, count: int
) -> Iterator[PretrainingBatch]:
  """Yields batches, with real text if there is a corpus.

  With a corpus, queries are random sentences, and candidates are random blocks.
  Without one, this repeats a random batch without padding and with empty
  titles, so the reader's input is the query and the whole body. Candidate 0 is
  the null block.
  """
  rng = np.random.default_rng(0)

  def words(*shape: int) -> np.ndarray:
    return rng.integers(_FIRST_WORD, options.vocab, shape).astype(np.int32)

  query = words(options.batch, options.query)
  query[:, 0], query[:, -1] = _CLS, _SEP
  blocks = words(options.batch, options.candidates, options.block)
  blocks[..., 0], blocks[..., 1], blocks[..., -1] = _CLS, _SEP, _SEP
  blocks[:, 0] = 0
  blocks[:, 0, :3] = _CLS, _SEP, _SEP
  places = np.arange(1, 1 + options.masks, dtype=np.int32)
  masks = MaskTargets(
    np.tile(places, (options.batch, 1)),
    words(options.batch, options.masks),
    np.ones((options.batch, options.masks), np.float32),
  )
  corpus = Corpus.open(options.corpus_dir) if options.corpus_dir else None
  for _ in range(count):
    if corpus is not None:
      rows = rng.integers(corpus.num_blocks, size=blocks.shape[:2])
      rows[:, 0] = -1
      sources = rng.integers(corpus.num_blocks, size=options.batch)
      query = corpus.random_sentences(sources, options.query, rng)
      blocks = corpus.gather(rows, options.block)
    candidates = Candidates.of(blocks)
    yield PretrainingBatch(query, candidates, masks)


def sequence_flops(
  options: argparse.Namespace, length: np.ndarray
) -> np.ndarray:
  """Returns the FLOPs of the encoder's matrix products, by sequence length."""
  width, inner = options.hidden, options.inner
  linear = 2 * length * (4 * width * width + 2 * width * inner)
  attention = 4 * length.astype(np.float64) ** 2 * width
  return options.layers * (linear + attention)


def useful(
  options: argparse.Namespace, models: Components, batch: PretrainingBatch
) -> Any:
  """Returns the useful tokens and FLOPs of a step.

  Useful tokens are all tokens except padding. Useful FLOPs are three times the
  FLOPs of the forward pass's matrix products on these tokens. A block that
  several queries share, such as the null block, counts once in the tower. Words
  are scored only at the masks.
  """
  assert batch.candidates is not None
  query, candidates = batch.query, np.asarray(batch.candidates.tokens)
  distinct = np.unique(candidates.reshape(-1, candidates.shape[-1]), axis=0)
  joint = models.token_reader.join(query, candidates).tokens.token_ids
  lengths = [
    np.count_nonzero(text, axis=-1).reshape(-1)
    for text in (query, distinct, joint)
  ]
  width, projection = options.hidden, models.retriever.vector_size
  pooled = 2 * (len(query) + len(distinct)) * width * (width + projection)
  num_masks = options.batch * options.candidates * options.masks
  head = 2 * num_masks * width * (width + options.vocab)
  encoders = sum(sequence_flops(options, part).sum() for part in lengths)
  return sum(part.sum() for part in lengths), 3 * (encoders + pooled + head)


def measure_step(
  options: argparse.Namespace, precision: str | None = None
) -> dict[str, Any]:
  """Compiles, runs and times our step, and then matrix products.

  `precision` is jax's precision of matrix products.
  """
  jax.config.update("jax_default_matmul_precision", precision)
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  models = make_models(options)
  batches = [*batches_of(options, options.steps + 1)]
  mesh = make_mesh(devices=jax.devices()[:1])
  layout = PackingLayout(mesh)
  if options.pack:
    # The step is compiled for two numbers of bins: enough for half of the
    # batches, and enough for all.
    needed = jax.jit(lambda batch: needed_bins(_STAGE.inputs(models, batch)))
    rows = np.array([needed(batch) for batch in batches])
    counts = np.ceil(np.median(rows, axis=0)), np.max(rows, axis=0)
    bin_counts = dict.fromkeys(tuple(n.astype(int).tolist()) for n in counts)
    layout = PackingLayout(mesh, tuple(bin_counts))
  update = optimizer.make_optimizer(
    optimizer.OptimizerConfig(learning_rate=3e-5), num_steps=10_000
  )

  @jax.jit
  def init(key: jax.Array) -> TrainState:
    params = meta.unbox(_STAGE.init(models, 16, 16, key))
    return TrainState(jnp.int32(0), params, update.init(params))

  state = init(jax.random.key(0))
  run = jax.jit(
    TrainStep(_STAGE, models, layout, update, seed=0),
    donate_argnums=0,
  )
  first = sharding.to_devices(batches[0], mesh)
  start = time.perf_counter()
  compiled = run.lower(state, first).compile(cpu_tuning.compiler_options(mesh))
  compile_seconds = time.perf_counter() - start
  cpu_tuning.return_freed_memory()
  seconds, tokens, flops = [], 0, 0.0
  for on_host in batches:
    batch = jax.block_until_ready(sharding.to_devices(on_host, mesh))
    start = time.perf_counter()
    state, _ = jax.block_until_ready(compiled(state, batch))
    seconds.append(time.perf_counter() - start)
    of_tokens, of_flops = useful(options, models, on_host)
    tokens, flops = tokens + int(of_tokens), flops + float(of_flops)
  peak = peer_processes.peak_memory()
  if memory := jax.devices()[0].memory_stats():  # None on CPUs.
    peak = memory["peak_bytes_in_use"]
  median, per_step = statistics.median(seconds[1:]), flops / len(batches)
  return {
    "seconds_per_step": median,
    "useful_tokens_per_second": tokens / len(batches) / np.mean(seconds[1:]),
    "useful_gflop_per_step": per_step / 1e9,
    "peak_memory_gb": peak / 1e9,
    "compile_seconds": compile_seconds,
    # After the step, so it does not raise the step's peak memory.
    "matmul_gflops_per_second": matmul_gflops_per_second(options.dtype),
  }


def matmul_gflops_per_second(dtype: str) -> float:
  """Measures our best rate for matrix products, large ones and a step's."""
  best = 0.0
  product = jax.jit(matmul.matmul)
  large = 8192 if jax.default_backend() != "cpu" else 2048
  for rows, inner, width in ((large,) * 3, *_STEP_PRODUCTS):
    left = jax.random.normal(jax.random.key(0), (rows, inner), dtype)
    right = jax.random.normal(jax.random.key(1), (inner, width), dtype)
    product(left, right).block_until_ready()
    for _ in range(6):
      start = time.perf_counter()
      product(left, right).block_until_ready()
      seconds = time.perf_counter() - start
      best = max(best, 2e-9 * rows * inner * width / seconds)
  return best


def measure_all(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
  """Measures each step in a separate process; returns metrics by system."""
  sizes = {name: getattr(options, name) for name in SIZES}
  synthetic = argparse.Namespace(**{**vars(options), "corpus_dir": None})
  measured = {"ours": in_new_process(measure_step, synthetic)}
  measured["ours, float32"] = in_new_process(measure_step, synthetic, "float32")
  if peer_processes.installed():
    common = f"--steps={options.peer_steps}", f"--sizes={json.dumps(sizes)}"
    for name, arguments in _PEERS.items():
      printed = peer_processes.run("step", *arguments, *common)
      measured[name] = json.loads(printed)
  return measured


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
  """Measures all steps in rounds; returns the medians, a row for each step."""
  rounds = [measure_all(options) for _ in range(options.rounds)]
  rows = []
  for name in rounds[0]:
    medians = {
      key: statistics.median(one[name][key] for one in rounds)
      for key in rounds[0][name]
    }
    seconds = medians["seconds_per_step"]
    # All steps have the same useful FLOPs.
    useful = rounds[0]["ours"]["useful_gflop_per_step"] / seconds
    rows.append(
      {
        "system": name,
        "examples_per_second": options.batch / seconds,
        "useful_gflops_per_second": useful,
        "matmul_gflops_per_second": medians["matmul_gflops_per_second"],
        "peak_memory_gb": medians["peak_memory_gb"],
        "compile_seconds": medians.get("compile_seconds", ""),
        # Compared within each round, so load on the machine cancels out.
        "ours_is_faster": statistics.median(
          one[name]["seconds_per_step"] / one["ours"]["seconds_per_step"]
          for one in rounds
        ),
        "target": _TARGETS.get(name, ""),
      }
    )
  return rows


def compare_on_text(options: argparse.Namespace) -> dict[str, float]:
  """Measures our step on a corpus; returns useful tokens per second."""
  rates = {}
  for name, pack in (("packed", True), ("padded", False)):
    sizes = argparse.Namespace(**{**vars(options), **_REAL_TEXT, "pack": pack})
    measured = in_new_process(measure_step, sizes)
    rates[name] = measured["useful_tokens_per_second"]
  return rates


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  options = flags.parse(
    __doc__,
    argv,
    **SIZES,
    dtype="float32",
    attention="xla",
    steps=7,
    peer_steps=5,
    rounds=3,
    corpus_dir=None,
  )
  options.pack = True
  result: dict[str, Any] = {"rows": compare(options)}
  print(flags.table(result["rows"]))
  if options.corpus_dir:
    result["tokens_per_second"] = compare_on_text(options)
    print(columns([*result["tokens_per_second"].items()]))
  flags.write(options, result)


if __name__ == "__main__":
  main()
