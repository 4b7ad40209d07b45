"""Compares our pre-training step with that of Hugging Face's REALM.

    python -m benchmarks.train_step --json=train_step.json

Each step is measured in a process of its own, so that its memory is measured
alone, one after the other: ours, and Hugging Face's in the environment of
`make peers` (`harness/peers/step.py`). With --corpus_dir (a corpus with
BERT's vocabulary and --block_length=288), our step is also measured on real
text, packed and padded. Both are compared with the machine's peak rate: the
best rate of a matrix product that jax or torch reaches. A step of the paper's
size on an accelerator:

    python -m benchmarks.train_step --dtype=bfloat16 --layers=12 --hidden=768 \
      --heads=12 --inner=3072 --block=288 --joint=352 --batch=16
"""

import argparse
import json
import resource
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
from realm_jax.models.bert import BertConfig
from realm_jax.models.components import Components
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.storage.json_files import write_json
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
# Rows, inner size and columns of a step's products.
_STEP_PRODUCTS = ((12288, 256, 1024), (12288, 1024, 256))


def make_models(given: argparse.Namespace) -> Components:
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
  retriever = BertRetriever(bert, projection_dropout_rate=given.dropout)
  reader = BertReader(bert, joint_length=given.joint)
  return Components({"retriever": retriever, "reader": reader})


def random_parameters(retriever: BertRetriever) -> Any:
  """Returns parameters of a retriever."""
  tokens = jnp.ones((1, 3), jnp.int32)
  variables = jax.jit(retriever.init)(jax.random.key(0), tokens, tokens)
  return meta.unbox(variables["params"])


def batches_of(
  given: argparse.Namespace, count: int
) -> Iterator[PretrainingBatch]:
  """Yields batches, of real text if there is a corpus.

  Of the corpus they are random sentences with random blocks as candidates.
  Otherwise a random batch without padding is repeated, whose titles are empty,
  so that the reader's input is the query and the whole body. Candidate 0 is the
  null block.
  """
  rng = np.random.default_rng(0)

  def words(*shape: int) -> np.ndarray:
    return rng.integers(_FIRST_WORD, given.vocab, shape).astype(np.int32)

  query = words(given.batch, given.query)
  query[:, 0], query[:, -1] = _CLS, _SEP
  blocks = words(given.batch, given.candidates, given.block)
  blocks[..., 0], blocks[..., 1], blocks[..., -1] = _CLS, _SEP, _SEP
  blocks[:, 0] = 0
  blocks[:, 0, :3] = _CLS, _SEP, _SEP
  places = np.arange(1, 1 + given.masks, dtype=np.int32)
  masks = MaskTargets(
    np.tile(places, (given.batch, 1)),
    words(given.batch, given.masks),
    np.ones((given.batch, given.masks), np.float32),
  )
  corpus = Corpus.open(given.corpus_dir) if given.corpus_dir else None
  for _ in range(count):
    if corpus is not None:
      rows = rng.integers(corpus.num_blocks, size=blocks.shape[:2])
      rows[:, 0] = -1
      sources = rng.integers(corpus.num_blocks, size=given.batch)
      query = corpus.random_sentences(sources, given.query, rng)
      blocks = corpus.gather(rows, given.block)
    candidates = Candidates.of(blocks)
    yield PretrainingBatch(query, candidates, masks)


def sequence_flops(given: argparse.Namespace, length: np.ndarray) -> np.ndarray:
  """Returns the FLOPs of the encoder's matrix products, by sequence length."""
  width, inner = given.hidden, given.inner
  linear = 2 * length * (4 * width * width + 2 * width * inner)
  attention = 4 * length.astype(np.float64) ** 2 * width
  return given.layers * (linear + attention)


def useful(
  given: argparse.Namespace, models: Components, batch: PretrainingBatch
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
  joint = models.reader.join(query, candidates).tokens.token_ids
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
  """Compiles, runs and times our step, and then matrix products."""
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  models = make_models(given)
  batches = [*batches_of(given, given.steps + 1)]
  mesh = make_mesh(devices=jax.devices()[:1])
  layout = PackingLayout(mesh)
  if given.pack:
    # The step is compiled for as many rows as hold half of the batches, and as
    # hold each.
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
    of_tokens, of_flops = useful(given, models, on_host)
    tokens, flops = tokens + int(of_tokens), flops + float(of_flops)
  peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  if memory := jax.devices()[0].memory_stats():  # None on CPUs.
    peak = memory["peak_bytes_in_use"]
  median, per_step = statistics.median(seconds[1:]), flops / len(batches)
  return {
    "seconds_per_step": median,
    "examples_per_second": given.batch / median,
    "useful_tokens_per_second": tokens / len(batches) / np.mean(seconds[1:]),
    "useful_gflop_per_step": per_step / 1e9,
    "useful_gflops_per_second": per_step / median / 1e9,
    "peak_memory_gb": peak / 1e9,
    "compile_seconds": compile_seconds,
    # After the step, so that it does not raise the step's peak memory.
    "matmul_gflops_per_second": matmul_gflops_per_second(given.dtype),
  }


def matmul_gflops_per_second(dtype: str) -> float:
  """Measures jax's best rate of matrix products, of large and step shapes."""
  best = 0.0
  product = jax.jit(jnp.dot)
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


def compare(given: argparse.Namespace) -> dict[str, Any]:
  """Measures each step in a process of its own; returns the figures by name."""
  sizes = {name: getattr(given, name) for name in SIZES}
  synthetic = argparse.Namespace(**{**vars(given), "corpus_dir": None})
  ours = in_new_process(measure_step, synthetic)
  ceiling = ours["matmul_gflops_per_second"]
  found = {f"ours_{name}": ours[name] for name in _SHOWN}
  if peer_processes.installed():
    printed = peer_processes.run(
      *("step", f"--steps={given.hf_steps}", f"--sizes={json.dumps(sizes)}")
    )
    theirs = json.loads(printed)
    ceiling = max(ceiling, theirs["matmul_gflops_per_second"])
    # Their step does the same useful arithmetic.
    useful = ours["useful_gflop_per_step"] / theirs["seconds_per_step"]
    theirs["useful_gflops_per_second"] = useful
    found |= {f"hf_{name}": theirs[name] for name in _SHOWN}
    found["speedup"] = theirs["seconds_per_step"] / ours["seconds_per_step"]
    found["memory_ratio"] = ours["peak_memory_gb"] / theirs["peak_memory_gb"]
  found["matmul_gflops_per_second"] = ceiling
  found["share_of_matmul"] = ours["useful_gflops_per_second"] / ceiling
  if given.corpus_dir:
    rates = []
    for name, pack in (("packed", True), ("padded", False)):
      sizes = {**vars(given), **_REAL_TEXT, "pack": pack}
      own = in_new_process(measure_step, argparse.Namespace(**sizes))
      rates.append(own["useful_tokens_per_second"])
      found[f"real_text_{name}_tokens_per_second"] = rates[-1]
    found["real_text_speedup"] = rates[0] / rates[1]
  return found


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  given = flags.parse(
    __doc__,
    argv,
    **SIZES,
    dtype="float32",
    attention="xla",
    steps=7,
    hf_steps=3,
    corpus_dir=None,
  )
  given.pack = True
  result = compare(given)
  print(columns([(n, v, _TARGETS.get(n, "")) for n, v in result.items()]))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
