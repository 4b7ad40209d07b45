"""Compares retrievers that are trained on judged passages, in the demo's world.

    python -m experiments.retrievers --output_dir=out/retrievers --seeds=3

All retrievers start from the same inverse-cloze run, and the cross-encoder from
the encoder of a reader that was trained on retrieved blocks. Finished runs are
reused. For a quick test, pass --gin_file=experiments/gin/demo/quick.gin.
"""

from collections.abc import Sequence

from experiments import comparing_flags
from realm_jax.configuration import command_line

comparing_flags.define("retrievers")


def main(argv: Sequence[str]) -> None:
  """Runs all systems on the worlds of all seeds, and writes the report."""
  del argv
  from experiments.retrievers.comparison import COMPARISON

  COMPARISON.run()


if __name__ == "__main__":
  command_line.run(main)
