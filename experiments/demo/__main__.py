"""Runs all stages in a generated world: `make demo`.

Each stage runs like its command, with its recipe in experiments/gin/demo/, and
prints that command. The index builder is a second process. Everything is stored
in --output_dir. After SIGTERM, the same command continues.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from realm_jax.configuration import command_line
from realm_jax.errors import RealmError

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "out/demo", "Directory for everything that the demo writes."
)


def main(argv: Sequence[str]) -> None:
  """Runs the demo and writes its report."""
  del argv
  output_dir = Path(_OUTPUT_DIR.value)
  if (output_dir / "report.json").exists():
    raise RealmError(
      f"{output_dir} has a finished demo; remove it, or choose another "
      "--output_dir"
    )
  gin_files, bindings = flags.FLAGS.gin_file, flags.FLAGS.gin_bindings
  if bindings:
    raise RealmError(
      f"{bindings[0]!r}: the stages of the demo bind different names; put "
      "bindings into a file such as experiments/gin/demo/quick.gin, and pass "
      "it as --gin_file"
    )
  from experiments.demo import report, stages
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.storage.sole_process import sole_process

  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  advice = "stop it, or choose another --output_dir"
  with sole_process(output_dir, "demo", advice=advice):
    results = stages.run_demo(stages.Demo(output_dir, gin_files))
  print(report.write(output_dir, results))


if __name__ == "__main__":
  command_line.run(main)
