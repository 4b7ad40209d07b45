"""Compares ways to learn from an agent's rewards, by its reward over time.

    python -m experiments.feedback --output_dir=out/feedback --seeds=3

An agent asks questions about the demo's world, reads what the service finds,
and reports whether its answer was correct. The retriever is frozen, retrained
in two rounds, or trained continuously. In further systems, facts in the corpus
change after half of the time. Systems run one after the other, each for
--seconds. Finished systems are reused.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from experiments import comparing_flags
from realm_jax.configuration import command_line

comparing_flags.define("feedback")
flags.DEFINE_float("seconds", 240.0, "Wall time of each system.", 10.0)


def main(argv: Sequence[str]) -> None:
  """Runs all systems in the worlds of all seeds, and writes the report."""
  del argv
  from experiments.feedback.comparison import COMPARISON, plot

  COMPARISON.run()
  plot(Path(flags.FLAGS.output_dir), flags.FLAGS.seeds)


if __name__ == "__main__":
  command_line.run(main)
