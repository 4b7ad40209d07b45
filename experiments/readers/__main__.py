"""Compares extractive readers and readers that write, in the demo's world.

    python -m experiments.readers --output_dir=out/readers --seeds=3

Each reader starts from random weights, and its retriever from the same
inverse-cloze run. The reader learns to read, is pre-trained with a retriever
whose index is refreshed, and is fine-tuned on questions. All recipes take about
the same CPU time. Finished steps are reused. For a quick test, pass
--gin_file=experiments/gin/demo/quick.gin.
"""

from collections.abc import Sequence

from experiments import comparing_flags
from realm_jax.configuration import command_line

comparing_flags.define("readers")


def main(argv: Sequence[str]) -> None:
  """Runs all systems on the worlds of all seeds, and writes the report."""
  del argv
  from experiments.readers.comparison import COMPARISON

  COMPARISON.run()


if __name__ == "__main__":
  command_line.run(main)
