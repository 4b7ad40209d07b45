"""Measures our pre-training step: time, memory and useful arithmetic.

    python -m benchmarks.own_step --steps=5

It runs as a process of its own, so that its memory is measured alone, and
prints one line of JSON. It needs TensorFlow only with --corpus_dir. Sizes are
those of `benchmarks/peers/hf_realm_step.py`.
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta

from benchmarks.peers.step_process import peak_memory_bytes, sizes_parser
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.partitioning import cpu_tuning, rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training import optimizer, stage_losses, step
from realm_jax.training.batches import (
  MaskTargets,
  PretrainingBatch,
  StepBatch,
)
from realm_jax.training.packing.packer import (
  Packer,
  largest_bucket,
  needed_bucket,
)
from realm_jax.training.stages.model_inputs import ModelInputs, Models
from realm_jax.training.state import TrainState

_CLS, _SEP, _FIRST_WORD = 101, 102, 999
Arrays = dict[str, np.ndarray]


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
  )
  retriever = Retriever(bert, projection_dropout_rate=given.dropout)
  return Models(retriever, Reader(bert, joint_length=given.joint))


def random_batch(given: argparse.Namespace, rng: np.random.Generator) -> Arrays:
  """Draws queries and blocks without padding; candidate 0 is the null block."""

  def words(*shape: int) -> np.ndarray:
    return rng.integers(_FIRST_WORD, given.vocab, shape).astype(np.int32)

  query = words(given.batch, given.query)
  query[:, 0], query[:, -1] = _CLS, _SEP
  # The title is empty, so the reader's input is the query and the whole body.
  candidates = words(given.batch, given.candidates, given.block)
  candidates[..., 0], candidates[..., 1], candidates[..., -1] = _CLS, _SEP, _SEP
  candidates[:, 0] = 0
  candidates[:, 0, :3] = _CLS, _SEP, _SEP
  return {"query": query, "candidates": candidates, **_masks(given, rng)}


def _masks(given: argparse.Namespace, rng: np.random.Generator) -> Arrays:
  shape = (given.batch, given.masks)
  return {
    "mask_positions": np.broadcast_to(
      np.arange(1, 1 + given.masks, dtype=np.int32), shape
    ),
    "mask_targets": rng.integers(_FIRST_WORD, given.vocab, shape).astype(
      np.int32
    ),
    "mask_weights": np.ones(shape, np.float32),
  }


def real_batches(
  given: argparse.Namespace, rng: np.random.Generator
) -> Iterator[Arrays]:
  """Yields random sentences of a corpus with random blocks as candidates."""
  from realm_jax.corpus.store import Corpus  # Reads text with TensorFlow.

  corpus = Corpus.open(given.corpus_dir)
  while True:
    rows = rng.integers(corpus.num_blocks, size=(given.batch, given.candidates))
    rows[:, 0] = -1
    query = np.zeros((given.batch, given.query), np.int32)
    for text in query:
      row = int(rng.integers(corpus.num_blocks))
      sentences = corpus.sentences(row)
      start, limit = sentences[rng.integers(len(sentences))]
      tokens = corpus.body_token_ids(row)[start:limit][: given.query - 2]
      text[: len(tokens) + 2] = [_CLS, *tokens, _SEP]
    candidates = corpus.gather(rows, given.block)
    yield {"query": query, "candidates": candidates, **_masks(given, rng)}


def sequence_flops(given: argparse.Namespace, length: np.ndarray) -> np.ndarray:
  """Returns the FLOPs of the encoder's matrix products, by sequence length."""
  width, inner = given.hidden, given.inner
  linear = 2 * length * (4 * width * width + 2 * width * inner)
  attention = 4 * length.astype(np.float64) ** 2 * width
  return given.layers * (linear + attention)


def useful(given: argparse.Namespace, models: Models, arrays: Arrays) -> Any:
  """Returns the useful tokens and FLOPs of a step.

  Useful tokens are those that are not padding. The FLOPs are three times those
  of the forward pass's matrix products on them. A block that several queries
  share, such as the null block, counts once in the tower. Words are scored only
  at the masks.
  """
  query, candidates = arrays["query"], arrays["candidates"]
  flat = candidates.reshape(-1, candidates.shape[-1])
  distinct = np.unique(flat, axis=0)
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


def host_batch(models: Models, arrays: Arrays) -> PretrainingBatch:
  """Returns the pre-training batch of padded arrays."""
  masks = MaskTargets(
    arrays["mask_positions"], arrays["mask_targets"], arrays["mask_weights"]
  )
  return ModelInputs(models).pretraining(
    arrays["query"], arrays["candidates"], masks
  )


def packer_for(batches: list[PretrainingBatch], *, pack: bool) -> Packer:
  """Returns a packer for the smallest shape bucket that fits all batches."""
  if not pack:
    return Packer([largest_bucket(batches[0])], groups=1, pack=False)
  needed = [needed_bucket(batch) for batch in batches]
  return Packer([tuple(map(max, zip(*needed, strict=True)))], groups=1)


def measure(given: argparse.Namespace) -> dict[str, Any]:
  """Compiles, runs and times the step."""
  rng = np.random.default_rng(0)
  models = make_models(given)
  if given.corpus_dir:
    source = real_batches(given, rng)
    batches = [next(source) for _ in range(given.steps + 1)]
  else:
    batches = [random_batch(given, rng)] * (given.steps + 1)
  packer = packer_for(
    [host_batch(models, arrays) for arrays in batches], pack=given.pack
  )
  mesh = make_mesh(devices=jax.devices()[:1])

  def prepared(arrays: Arrays) -> StepBatch:
    return rules.to_devices(packer(host_batch(models, arrays)), mesh)

  update = optimizer.make_optimizer(
    optimizer.OptimizerConfig(learning_rate=3e-5), num_steps=10_000
  )

  reader = models.require_reader()

  @jax.jit
  def init(key: jax.Array) -> TrainState:
    tokens = [jnp.ones((1, 16), jnp.int32), jnp.ones((1, 1, 16), jnp.int32)]
    params = {
      "retriever": models.retriever.init(key, *tokens)["params"],
      "reader": reader.init(key, *tokens, tokens[0][:, :1])["params"],
    }
    params = meta.unbox(params)
    return TrainState(jnp.int32(0), params, update.init(params))

  state = init(jax.random.key(0))
  run = jax.jit(
    functools.partial(
      step.train_step,
      loss=functools.partial(
        stage_losses.pretraining, models.retriever, reader
      ),
      optimizer=update,
      seed=0,
    ),
    donate_argnums=0,
  )
  first = prepared(batches[0])
  start = time.perf_counter()
  compiled = run.lower(state, first).compile(cpu_tuning.compiler_options(mesh))
  compile_seconds = time.perf_counter() - start
  cpu_tuning.return_freed_memory()
  analysis = compiled.memory_analysis()
  seconds, tokens, flops, loss = [], 0, 0.0, 0.0
  for arrays in batches:
    batch = prepared(arrays)
    jax.block_until_ready(batch)
    start = time.perf_counter()
    state, metrics = jax.block_until_ready(compiled(state, batch))
    seconds.append(time.perf_counter() - start)
    loss = float(metrics["loss"])
    of_tokens, of_flops = useful(given, models, arrays)
    tokens, flops = tokens + int(of_tokens), flops + float(of_flops)
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
    "peak_memory_gb": peak_memory_bytes() / 1e9,
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
    left = jnp.ones((rows, inner), dtype)
    right = jnp.ones((inner, columns), dtype)
    product(left, right).block_until_ready()
    for _ in range(6):
      start = time.perf_counter()
      product(left, right).block_until_ready()
      seconds = time.perf_counter() - start
      best = max(best, 2e-9 * rows * inner * columns / seconds)
  return best


def make_parser() -> argparse.ArgumentParser:
  """Returns the parser of the flags."""
  parser = sizes_parser((__doc__ or "").partition("\n")[0])
  parser.add_argument("--dtype", default="float32", help="activation type")
  parser.add_argument(
    "--corpus_dir",
    help="corpus to take texts from; by default texts are random and full",
  )
  parser.add_argument(
    "--pack",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="whether sequences share rows",
  )
  return parser


def main() -> None:
  """Runs the benchmark."""
  given = make_parser().parse_args()
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  result = measure(given)
  # After the step, so that it does not raise the step's peak memory.
  result["matmul_gflops_per_second"] = matmul_gflops_per_second(given.dtype)
  print(json.dumps(result))


if __name__ == "__main__":
  main()
