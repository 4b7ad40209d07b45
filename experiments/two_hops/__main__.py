"""Compares systems on questions that need a note and a page.

    python -m experiments.two_hops --output_dir=out/two_hops --seeds=3

All systems start from the same retriever and reader, which were pre-trained and
fine-tuned on questions of one hop. Finished steps are reused. For a quick test,
pass --gin_file=experiments/gin/demo/quick.gin.
"""

from collections.abc import Sequence

from experiments import comparing_flags
from realm_jax.configuration import command_line

comparing_flags.define("two_hops")


def main(argv: Sequence[str]) -> None:
  """Runs all systems on the worlds of all seeds, and writes the report."""
  del argv
  from experiments.two_hops.comparison import COMPARISON

  COMPARISON.run()


if __name__ == "__main__":
  command_line.run(main)
