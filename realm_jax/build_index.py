"""Builds and publishes search indexes beside a training run.

    python -m realm_jax.build_index --gin_file=gin/runs/build_index.gin …

It follows the run's checkpoints until it is stopped; `--once` builds one
generation, the newest checkpoint's, and exits.

Several workers embed a generation together, shard i by worker i mod n. They are
the processes of one command, as on the hosts of a TPU slice. Where processes
cannot start together, `--worker=0/4` to `--worker=3/4` name them; they share
MODEL_DIR and CORPUS_DIR, on a disk or on gs://, and nothing else.
"""

from collections.abc import Sequence

from absl import flags, logging

from realm_jax import configuration, device_command
from realm_jax.generations.building import run
from realm_jax.partitioning import cpu_tuning

_ONCE = flags.DEFINE_bool(
  "once", False, "Build the newest checkpoint's generation and exit."
)
_WORKER = flags.DEFINE_string(
  "worker", None, "i/n: this is worker i of n, which were started one by one."
)


def main(argv: Sequence[str]) -> None:
  """Runs `generations.building.run.build_index` as gin configures it."""
  del argv
  cpu_tuning.keep_freed_memory()
  published = configuration.call(
    run.build_index, once=_ONCE.value, worker=_WORKER.value
  )
  logging.info("done: published %s", published or "nothing")


if __name__ == "__main__":
  device_command.run(main)
