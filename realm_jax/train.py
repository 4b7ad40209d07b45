"""Trains one stage: `python -m realm_jax.train --gin_file=gin/runs/….gin`.

The gin file chooses the stage: inverse cloze, reading, REALM pre-training or
open QA. The files under gin/runs/ say what each needs.
"""

from collections.abc import Sequence

from absl import logging

from realm_jax import configuration, device_command
from realm_jax.partitioning import cpu_tuning
from realm_jax.training import loop
from realm_jax.training.config import TrainConfig


def main(argv: Sequence[str]) -> None:
  """Trains the run that gin configures."""
  del argv
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  result = loop.train(configuration.call(TrainConfig))
  logging.info("done: step %d, %d swaps", result.step, result.swaps)


if __name__ == "__main__":
  device_command.run(main)
