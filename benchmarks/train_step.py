"""Compares our pre-training step with that of Hugging Face's REALM.

    python -m benchmarks.train_step --json=train_step.json

Each step is measured in a process of its own, one after the other: ours
(`benchmarks.own_step`), and Hugging Face's in the environment of `make peers`.
With --corpus_dir (a corpus with BERT's vocabulary and --block_length=288), our
step is also measured on real text, packed and padded. Both are compared with
the machine's peak rate: the best rate of a float32 matrix product that jax or
torch reaches.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import peer_processes
from benchmarks.runs.jobs import PROJECT_DIR
from realm_jax.files.json_file import write_json

_KEPT = (
  "examples_per_second",
  "peak_memory_gb",
  "useful_gflops_per_second",
  "seconds_per_step",
)
_REAL_TEXT = ("--query=64", "--block=288", "--joint=352")
_TARGETS = {
  "speedup": (3.0, "≥"),
  "share_of_matmul": (0.5, "≥"),
  "memory_ratio": (1 / 3, "≤"),
  "real_text_speedup": (1.5, "≥"),
}


def own_step(*flags: str) -> dict[str, Any]:
  """Measures our step in a process of its own."""
  command = [sys.executable, "-m", "benchmarks.own_step", *flags]
  done = subprocess.run(command, cwd=PROJECT_DIR, stdout=subprocess.PIPE)
  if done.returncode:
    sys.exit(f"{' '.join(command)} ended with {done.returncode}")
  return json.loads(done.stdout.decode().splitlines()[-1])


def hf_step(steps: int) -> dict[str, Any]:
  """Measures Hugging Face's step in a process of its own."""
  printed = peer_processes.run("hf_realm_step", f"--steps={steps}")
  return json.loads(printed.splitlines()[-1])


def measure(given: argparse.Namespace) -> dict[str, Any]:
  """Measures all steps and returns the figures."""
  ours = own_step(f"--steps={given.steps}")
  ceiling = ours["matmul_gflops_per_second"]
  result: dict[str, Any] = {"ours": {name: ours[name] for name in _KEPT}}
  if peer_processes.installed():
    theirs = hf_step(given.hf_steps)
    ceiling = max(ceiling, theirs["matmul_gflops_per_second"])
    # Their step does the same useful arithmetic.
    useful = ours["useful_gflop_per_step"] / theirs["seconds_per_step"]
    theirs["useful_gflops_per_second"] = useful
    result["hf"] = {name: theirs[name] for name in _KEPT}
    result["speedup"] = (
      ours["examples_per_second"] / theirs["examples_per_second"]
    )
    result["memory_ratio"] = ours["peak_memory_gb"] / theirs["peak_memory_gb"]
  result["matmul_gflops_per_second"] = ceiling
  result["share_of_matmul"] = ours["useful_gflops_per_second"] / ceiling
  if given.corpus_dir:
    flags = (*_REAL_TEXT, f"--corpus_dir={given.corpus_dir.absolute()}")
    flags = (*flags, f"--steps={given.steps}")
    packed, padded = own_step(*flags), own_step(*flags, "--no-pack")
    name = "useful_tokens_per_second"
    result["real_text"] = {"packed": packed[name], "padded": padded[name]}
    result["real_text_speedup"] = packed[name] / padded[name]
  return result


def table(result: dict[str, Any]) -> str:
  """Formats the figures and targets as a table."""
  lines = []
  for system in ("ours", "hf"):
    for name, value in result.get(system, {}).items():
      lines.append(f"{system + ' ' + name:<36} {value:.3f}")
  for name in ("packed", "padded"):
    if "real_text" in result:
      value = result["real_text"][name]
      lines.append(f"{'real text, ' + name + ', tokens/s':<36} {value:.0f}")
  rate = result["matmul_gflops_per_second"]
  lines.append(f"{'matmul_gflops_per_second':<36} {rate:.1f}")
  for name, (target, sign) in _TARGETS.items():
    if name in result:
      shown = f"{result[name]:.3f}  (target {sign} {target:.2f})"
      lines.append(f"{name:<36} {shown}")
  return "\n".join(lines)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--steps", type=int, default=7, help="measured steps of ours"
  )
  parser.add_argument(
    "--hf_steps", type=int, default=3, help="measured steps of theirs"
  )
  parser.add_argument("--corpus_dir", type=Path, help="corpus of the real text")
  parser.add_argument("--json", type=Path, help="file to write the figures to")
  given = parser.parse_args()
  if not peer_processes.installed():
    print(
      "Hugging Face is not installed (run `make peers`); measuring ours only"
    )
  result = measure(given)
  print(table(result))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
