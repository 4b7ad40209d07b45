"""Compares training and generation of Fusion-in-Decoder with torch.

    python -m benchmarks.reader --json=reader.json

Each system is measured in a separate process, one after the other, for --rounds
rounds; the medians are reported. All have the same random weights and read the
same passages, with lengths from half of --length to --length. Ours is measured
with matrix products in this platform's precision and in float32. The others run
in the environment of `make peers` (`harness/peers/reader.py`):
Fusion-in-Decoder as published, and a tuned version in float32 and bfloat16.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import flags
from harness import peer_processes
from harness.agreement.t5 import packed
from harness.peer_processes import in_new_process
from realm_jax.models.decoding import generate
from realm_jax.models.sequences import Sequences
from realm_jax.models.t5 import T5, log_likelihood
from realm_jax.partitioning import cpu_tuning
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training import optimizer
from realm_jax.weights.t5 import read_t5

# T5 small.
SIZES = {
  "layers": 6,
  "hidden": 512,
  "heads": 8,
  "head_size": 64,
  "inner": 2048,
  "vocab": 32128,
  "batch": 4,
  "candidates": 10,
  "length": 200,
  "target": 16,
}
_OURS = {"ours": None, "ours, float32": "float32"}
# Measurements, with arguments for the peers; and targets for our speed.
_STEPS = {
  "torch, float32": ("tuned", "--dtype=float32"),
  "torch, bfloat16": ("tuned", "--dtype=bfloat16"),
  "FiD as published": ("published",),
}
_WRITING = {
  "transformers, float32": ("generate", "--dtype=float32"),
  "transformers, bfloat16": ("generate", "--dtype=bfloat16"),
}
_TARGETS = {
  "torch, bfloat16": "≥ 1.2",
  "FiD as published": "≥ 2",
  "transformers, float32": "≥ 2",
  "transformers, bfloat16": "≥ 2",
}


def measure(
  folder: Path, steps: int, num_beams: int, precision: str | None
) -> dict[str, Any]:
  """Measures our step, or our generation if `num_beams` is set."""
  jax.config.update("jax_default_matmul_precision", precision)
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  config, params, _ = read_t5(folder)
  with np.load(folder / "inputs.npz") as arrays:
    inputs, targets = (arrays[n].astype(np.int32) for n in arrays.files)
  batch, number, length = inputs.shape
  model, sequences = T5(config), packed(inputs.reshape(-1, length))
  params = {"reader": jax.tree.map(jnp.asarray, params)}
  options = cpu_tuning.compiler_options(make_mesh(devices=jax.devices()[:1]))
  result: dict[str, Any] = {}
  if num_beams:

    def write(params: Any, sequences: Sequences) -> Any:
      memory = model.apply(
        {"params": params["reader"]}, sequences, method="encode_memory"
      )
      return generate(
        *(model, params["reader"], memory.fused(number)),
        max_tokens=targets.shape[1],
        num_beams=num_beams,
      )

    compiled = jax.jit(write).lower(params, sequences).compile(options)
    seconds, written = _timed(lambda: compiled(params, sequences), steps)
    result["texts"] = written.token_ids.reshape(batch, -1).tolist()
  else:
    is_target = targets != 0
    adamw = optimizer.OptimizerConfig(optimizer="adamw", learning_rate=1e-4)
    update = optimizer.make_optimizer(adamw, num_steps=10_000)

    def loss(params: Any, sequences: Sequences, **settings: Any) -> jax.Array:
      logits = model.apply(
        {"params": params["reader"]},
        *(sequences, targets),
        fused=number,
        **settings,
      )
      return -log_likelihood(logits, targets).sum() / is_target.sum()

    def step(params: Any, state: Any, sequences: Sequences) -> Any:
      rngs = {"dropout": jax.random.key(0)}
      gradient = jax.grad(loss)(params, sequences, rngs=rngs)
      changes, state = update.update(gradient, state, params)
      return jax.tree.map(jnp.add, params, changes), state

    result["loss"] = float(jax.jit(loss)(params, sequences))
    state = update.init(params)
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower
    compiled = lowered(params, state, sequences).compile(options)

    def run() -> None:
      nonlocal params, state
      params, state = compiled(params, state, sequences)
      jax.block_until_ready(params)

    seconds, _ = _timed(run, steps)
  memory = peer_processes.peak_memory() / 1e9
  return {**result, "seconds": seconds, "peak_memory_gb": memory}


def _timed(function: Callable[[], Any], steps: int) -> tuple[list[float], Any]:
  """Returns the times of calls after the first, and the last call's result."""
  seconds, result = [], None
  for _ in range(steps + 1):
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    seconds.append(time.perf_counter() - start)
  return seconds[1:], result


def compare(
  options: argparse.Namespace, folder: Path, num_beams: int
) -> list[dict[str, Any]]:
  """Measures all systems in rounds; returns the medians, a row for each."""
  peers = _WRITING if num_beams else _STEPS
  what = f"{num_beams} beams" if num_beams else "step"
  common = f"--folder={folder}", f"--steps={options.steps}"
  rounds: list[dict[str, dict[str, Any]]] = []
  for number in range(options.rounds):
    rounds.append({})
    for name in (*_OURS, *peers):
      if name in _OURS:
        arguments = folder, options.steps, num_beams, _OURS[name]
        measured = in_new_process(measure, *arguments)
      else:
        beams = f"--beams={num_beams or 1}"
        printed = peer_processes.run("reader", *peers[name], *common, beams)
        measured = json.loads(printed)
      rounds[-1][name] = measured
      seconds = statistics.median(measured["seconds"])
      print(f"round {number + 1}, {what}, {name}: {seconds:.3f} s", flush=True)
  first, rows = rounds[0], []
  for name, measured in first.items():
    seconds = [statistics.median(r[name]["seconds"]) for r in rounds]
    ours = [statistics.median(r["ours"]["seconds"]) for r in rounds]
    pairs = zip(seconds, ours, strict=True)
    ratios = [theirs / of_ours for theirs, of_ours in pairs]
    wanted = first["ours, float32"].get("texts")
    agrees = (
      measured.get("texts") == wanted
      if num_beams
      else f"{measured['loss']:.4f}"
    )
    rows.append(
      {
        "what": what,
        "system": name,
        "seconds": statistics.median(seconds),
        "peak_memory_gb": measured["peak_memory_gb"],
        "loss_or_same_texts": str(agrees),
        # Compared within each round, so load on the machine cancels out.
        "ours_is_faster": statistics.median(ratios),
        "target": _TARGETS.get(name, ""),
      }
    )
  return rows


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  options = flags.parse(
    *(__doc__, argv), **SIZES, steps=3, rounds=3, beams=(1, 4)
  )
  rows = []
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    sizes = {key: getattr(options, key) for key in SIZES}
    given_sizes = f"--sizes={json.dumps(sizes)}"
    peer_processes.run("reader", "make", f"--folder={folder}", given_sizes)
    rows += compare(options, folder, 0)
    for num_beams in map(int, options.beams):
      rows += compare(options, folder, num_beams)
  print(flags.table(rows))
  flags.write(options, {"rows": rows})


if __name__ == "__main__":
  main()
