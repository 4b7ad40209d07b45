"""Compares readers in the demo's world: those that point, and those that write.

    python -m experiments.readers --output_dir=out/readers --seeds=3

Each reader starts from random weights, and its retriever from the same inverse
cloze. It learns to read, pre-trains with a retriever whose index is rebuilt,
and is fine-tuned on questions; the recipes' steps take about as many seconds of
the processor. What stands is not made again. experiments/gin/demo/quick.gin, as
a --gin_file, tries the machinery.
"""

from collections.abc import Sequence

from experiments import comparing_flags
from realm_jax.configuration import command_line

comparing_flags.define("readers")


def main(argv: Sequence[str]) -> None:
  """Runs all systems on the worlds of all seeds, and reports."""
  del argv
  from experiments.readers.comparison import COMPARISON

  COMPARISON.run()


if __name__ == "__main__":
  command_line.run(main)
