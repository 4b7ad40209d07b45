"""Runs every stage on a generated world: `make demo`.

Each stage runs as its command would, with that stage's recipe under
gin/experiments/demo/, and prints the command. The index builder is a second
process. Everything is kept under --output_dir.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from realm_jax.configuration import command_line

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "out/demo", "Directory of everything that the demo writes."
)


def main(argv: Sequence[str]) -> None:
  """Runs the demo and writes its report."""
  del argv
  output_dir = Path(_OUTPUT_DIR.value)
  if output_dir.exists() and any(output_dir.iterdir()):
    raise ValueError(
      f"{output_dir} is not empty; remove it, or choose another --output_dir"
    )
  gin_files, bindings = command_line.given()
  if bindings:
    raise ValueError(
      f"{bindings[0]!r}: each stage of the demo has other names to bind; put "
      "bindings into a file, as in gin/experiments/demo/quick.gin, and give "
      "--gin_file"
    )
  from realm_jax.demo_run import report
  from realm_jax.demo_run.commands import DemoCommands
  from realm_jax.demo_run.stages import run_demo
  from realm_jax.partitioning import cpu_tuning

  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  print(report.write(output_dir, run_demo(DemoCommands(output_dir, gin_files))))


if __name__ == "__main__":
  command_line.run(main)
