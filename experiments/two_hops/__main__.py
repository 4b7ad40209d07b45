"""Compares systems on questions that need a note and a page.

    python -m experiments.two_hops --output_dir=out/two_hops --seeds=3

All start from the same retriever and reader, which have been pre-trained and
fine-tuned on questions of one hop and of two. What stands is not made again.
experiments/gin/demo/quick.gin, as a --gin_file, tries the machinery.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from realm_jax.configuration import command_line

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "out/two_hops", "Directory of all runs and of the report."
)
_SEEDS = flags.DEFINE_integer(
  "seeds", 3, "Number of worlds, each with a seed of its own.", lower_bound=1
)
_SYSTEMS = flags.DEFINE_list(
  "systems", [], "Systems to compare, such as two_hops; by default all."
)


def main(argv: Sequence[str]) -> None:
  """Runs all systems on the worlds of all seeds, and reports."""
  del argv
  from experiments.two_hops.comparison import compare
  from realm_jax.partitioning import cpu_tuning
  from realm_jax.storage.sole_process import sole_process

  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  output_dir = Path(_OUTPUT_DIR.value)
  advice = "stop it, or choose another --output_dir"
  with sole_process(output_dir, "two_hops", advice=advice):
    report = compare(
      output_dir, _SYSTEMS.value, _SEEDS.value, flags.FLAGS.gin_file
    )
    (output_dir / "report.md").write_text(f"{report}\n")
  print(f"\n{report}\n\nreport: {output_dir / 'report.md'}")


if __name__ == "__main__":
  command_line.run(main)
