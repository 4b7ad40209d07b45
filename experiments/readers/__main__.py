"""Compares readers in the demo's world: those that point, and those that write.

    python -m experiments.readers --output_dir=out/readers --seeds=3

Each reader starts from random weights, and its retriever from the same inverse
cloze. It learns to read, pre-trains with a retriever whose index is rebuilt,
and is fine-tuned on questions; the recipes' steps take about as many seconds of
the processor. What stands is not made again. experiments/gin/demo/quick.gin, as
a --gin_file, tries the machinery.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from realm_jax.configuration import command_line

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "out/readers", "Directory of all runs and of the report."
)
_SEEDS = flags.DEFINE_integer(
  "seeds", 3, "Number of worlds, each with a seed of its own.", lower_bound=1
)
_READERS = flags.DEFINE_list(
  "readers", [], "Readers to compare, such as fid; by default all."
)


def main(argv: Sequence[str]) -> None:
  """Runs all contenders on the worlds of all seeds, and reports."""
  del argv
  from experiments.readers.comparison import compare
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.storage.sole_process import sole_process

  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  output_dir = Path(_OUTPUT_DIR.value)
  advice = "stop it, or choose another --output_dir"
  with sole_process(output_dir, "readers", advice=advice):
    report = compare(
      output_dir, _READERS.value, _SEEDS.value, flags.FLAGS.gin_file
    )
    (output_dir / "report.md").write_text(f"{report}\n")
  print(f"\n{report}\n\nreport: {output_dir / 'report.md'}")


if __name__ == "__main__":
  command_line.run(main)
