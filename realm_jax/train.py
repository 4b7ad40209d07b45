"""Trains one stage: `python -m realm_jax.train --gin_file=gin/runs/….gin`.

Inverse cloze, reading, REALM pre-training or open QA, chosen by the gin file;
the files under gin/runs/ say what each needs.
"""

from collections.abc import Sequence

from absl import logging

from realm_jax import configuration
from realm_jax.partitioning import cpu_tuning
from realm_jax.training import loop


def main(argv: Sequence[str]) -> None:
  """Runs `training.loop.train` as gin configures it."""
  del argv
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  result = configuration.call(loop.train)
  logging.info("done: step %d, %d swaps", result["step"], result["swaps"])


if __name__ == "__main__":
  configuration.run(main)
