"""Measures training at the paper's size on one accelerator.

    python -m benchmarks.accelerator --json=accelerator.json

Inputs and weights are random, so neither TensorFlow nor a corpus is needed. In
a few minutes, it measures three things in bfloat16:

- the pre-training step (Guu et al. 2020, section 4.1), with cuDNN's and XLA's
  attention, with the batch doubled until it does not fit in memory;
- embedding blocks of up to 288 wordpieces with a BERT-base tower, as in the
  index builder;
- exact search over 13,353,718 vectors, the paper's number of blocks.

Rates are also shown relative to the rate of a large matrix product. To try the
script on CPUs, use smaller sizes, such as --layers=2 --hidden=64.
"""

import argparse
import functools
import json
import time
import types
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

from benchmarks import flags, train_step
from harness.peer_processes import in_new_process
from realm_jax.console import columns
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.exact import ExactConfig, ExactIndex
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.snapshots.embedding import CorpusEmbedder

_PAPER = {
  **train_step.SIZES,
  "batch": 16,
  "layers": 12,
  "hidden": 768,
  "heads": 12,
  "inner": 3072,
  "block": 288,
  "joint": 352,
}
_TARGETS = {"step": 0.4, "embedding": 0.55, "compile_seconds": 60.0}
_NUM_BLOCKS = 13_353_718
_DIM = 128
_WARM_UP, _SEARCHES = 2, 10


def steps(sizes: argparse.Namespace) -> list[dict[str, Any]]:
  """Measures steps, doubling the batch until it does not fit in memory."""
  rows = []
  for attention in sizes.attentions:
    batch = sizes.batch
    while batch <= sizes.max_batch:
      options = argparse.Namespace(
        **{**vars(sizes), "attention": attention, "batch": batch}
      )
      try:
        step = in_new_process(train_step.measure_step, options)
      except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
          raise
        break
      rate = step["useful_gflop_per_step"] / step["seconds_per_step"]
      rows.append(
        {
          "attention": attention,
          "batch": batch,
          "examples_per_second": batch / step["seconds_per_step"],
          "part_of_product_rate": rate / step["matmul_gflops_per_second"],
          **step,
        }
      )
      batch *= 2
  return rows


def random_corpus(num_blocks: int, block_length: int, vocab: int) -> Corpus:
  """Returns a corpus of random wordpieces, for the embedder.

  Lengths are evenly spread, and titles are empty.
  """
  rng = np.random.default_rng(1)
  lengths = rng.integers(block_length // 4, block_length + 1, num_blocks)

  def gather(rows: np.ndarray, length: int) -> np.ndarray:
    tokens = rng.integers(999, vocab, (len(rows), length), np.int32)
    tokens[:, :2] = 101, 102  # [CLS] and [SEP].
    return np.where(np.arange(length) < lengths[rows, None], tokens, 0)

  corpus = types.SimpleNamespace(
    gather=gather,
    lengths=lengths,
    block_length=block_length,
    num_blocks=num_blocks,
  )
  return cast(Corpus, corpus)


def embedding(sizes: argparse.Namespace) -> dict[str, Any]:
  """Measures the embedding of random blocks."""
  options = argparse.Namespace(
    **{**vars(sizes), "dropout": 0.0, "attention": "xla"}
  )
  num_blocks = options.blocks
  retriever = train_step.make_models(options).retriever
  params = train_step.random_parameters(retriever)
  corpus = random_corpus(num_blocks, options.block, options.vocab)

  def embed(params: Any, token_ids: jax.Array) -> Any:
    return retriever.apply({"params": params}, token_ids, method="embed_blocks")

  embedder = CorpusEmbedder(
    *(corpus, embed),
    dim=_DIM,
    mesh=make_mesh(devices=jax.devices()[:1]),
    tokens_per_batch=1 << 17,
  )
  rows = np.arange(num_blocks)
  embedder.embed(params, rows)  # Compiles.
  start = time.perf_counter()
  embedder.embed(params, rows)
  seconds = time.perf_counter() - start
  flops = train_step.sequence_flops(options, corpus.lengths).sum()
  product = train_step.matmul_gflops_per_second(options.dtype)
  return {
    "blocks": num_blocks,
    "blocks_per_second": num_blocks / seconds,
    "tokens_per_second": int(corpus.lengths.sum()) / seconds,
    "teraflops_per_second": flops / seconds / 1e12,
    "part_of_product_rate": flops / seconds / 1e9 / product,
    "minutes_for_wikipedia": _NUM_BLOCKS / num_blocks * seconds / 60,
  }


def searches(num_blocks: int) -> list[dict[str, Any]]:
  """Measures exact search for batches of several sizes."""
  rng = np.random.default_rng(2)
  part = rng.standard_normal((1 << 20, _DIM), np.float32)
  vectors = np.concatenate([part] * -(-num_blocks // len(part)))[:num_blocks]
  start = time.perf_counter()
  index = ExactIndex(vectors, ExactConfig("bfloat16"))
  jax.block_until_ready(index.vectors)
  loading = time.perf_counter() - start
  rows = []
  for num_queries in (8, 64, 512):
    queries = jax.random.normal(jax.random.key(3), (num_queries, _DIM))
    search = functools.partial(index.search_on_device, queries, 8)
    for _ in range(_WARM_UP):
      jax.block_until_ready(search())
    start = time.perf_counter()
    jax.block_until_ready([search() for _ in range(_SEARCHES)])
    seconds = (time.perf_counter() - start) / _SEARCHES
    flops = 2 * num_blocks * _DIM * num_queries
    rows.append(
      {
        "queries": num_queries,
        "milliseconds": 1e3 * seconds,
        "gigabytes_per_second": index.vectors.nbytes / seconds / 1e9,
        "teraflops_per_second": flops / seconds / 1e12,
        "loading_seconds": loading,
      }
    )
  return rows


def best(results: dict[str, Any]) -> list[list[object]]:
  """Returns a row for each target, with the measured and the target value."""
  step = max(results["steps"], key=lambda step: step["part_of_product_rate"])
  measured = {
    "step": step["part_of_product_rate"],
    "embedding": results["embedding"]["part_of_product_rate"],
    "compile_seconds": step["compile_seconds"],
  }
  return [[name, measured[name], wanted] for name, wanted in _TARGETS.items()]


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  options = flags.parse(
    __doc__,
    argv,
    **_PAPER,
    dtype="bfloat16",
    attentions=("cudnn", "xla"),
    max_batch=128,
    steps=7,
    blocks=100_000,
    search_blocks=_NUM_BLOCKS,
  )
  options.pack, options.corpus_dir = True, None
  # A process that has used an accelerator keeps its memory. So the steps, which
  # run in separate processes, come first.
  results: dict[str, Any] = {"steps": steps(options)}
  results |= {
    "device": jax.devices()[0].device_kind,
    "search": searches(options.search_blocks),
    "embedding": embedding(options),
  }
  print(json.dumps(results, indent=2))
  print(columns([["", "measured", "wanted"], *best(results)]))
  flags.write(options, results)


if __name__ == "__main__":
  main()
