"""Compares ways to learn from an agent's rewards, by its reward over time.

    python -m experiments.feedback --output_dir=out/feedback --seeds=3

An agent asks questions about the demo's world, reads what the service finds,
and sends whether its answer was right. The retriever stays as it is, is
retrained in two rounds, or learns all the time. In further systems, facts
change in the corpus after half of the time. Each system has the machine alone
for --seconds. What stands is not made again.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from experiments import comparing_flags
from realm_jax.configuration import command_line

comparing_flags.define("feedback")
flags.DEFINE_float("seconds", 240.0, "Wall time of each system.", 10.0)


def main(argv: Sequence[str]) -> None:
  """Runs all systems in the worlds of all seeds, and reports."""
  del argv
  from experiments.feedback.comparison import COMPARISON, plot

  COMPARISON.run()
  plot(Path(flags.FLAGS.output_dir), flags.FLAGS.seeds)


if __name__ == "__main__":
  command_line.run(main)
