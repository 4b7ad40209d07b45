"""Builds and publishes search indexes beside a training run.

    python -m realm_jax.build_index --gin_file=gin/runs/build_index.gin …

It follows the run's checkpoints until it is stopped; `--once` builds one
generation, the newest checkpoint's, and exits. On several hosts that share a
file system, each process embeds a part of every generation.
"""

from collections.abc import Sequence

from absl import flags, logging

from realm_jax import configuration, device_command
from realm_jax.generations.building import sidecar
from realm_jax.partitioning import cpu_tuning

_ONCE = flags.DEFINE_bool(
  "once", False, "Build the newest checkpoint's generation and exit."
)


def main(argv: Sequence[str]) -> None:
  """Runs `generations.building.sidecar.build_index` as gin configures it."""
  del argv
  cpu_tuning.keep_freed_memory()
  published = configuration.call(sidecar.build_index, once=_ONCE.value)
  logging.info("done: published %s", published or "nothing")


if __name__ == "__main__":
  device_command.run(main)
