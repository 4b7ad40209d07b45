"""Builds and publishes search indexes during a training run.

    python -m realm_jax.build_index --model_dir=runs/realm

It follows the run's checkpoints until it is stopped; `--once` builds one
snapshot, the newest checkpoint's, and exits. Without gin files it waits until
the trainer has started, and uses the run's configuration, over
gin/runs/build_index.gin. The index then has the kind of the newest snapshot or,
without one, the kind that the run needs.

Several processes of one command, as on the hosts of a TPU slice, embed a
snapshot together, shard s in process s mod n. They share MODEL_DIR and
CORPUS_DIR, on a disk or on gs://. Like `realm_jax.train`, the command restarts
the process that builds.
"""

from collections.abc import Sequence

from absl import flags

from realm_jax import supervisor

_ONCE = flags.DEFINE_bool(
  "once", False, "Build the newest checkpoint's snapshot and exit."
)
_PUBLISH_IF_BETTER = flags.DEFINE_bool(
  "publish_if_better",
  False,
  "Skip checkpoints whose retriever is worse than the newest snapshot by "
  "held-out feedback (docs/agents.md).",
)


def main(argv: Sequence[str]) -> None:
  """Runs `snapshots.index_builder.build_index` as gin configures it."""
  del argv
  from absl import logging

  from realm_jax.configuration import command_line

  build_index = command_line.configured(
    "realm_jax.snapshots.index_builder:build_index",
    recipe="gin/runs/build_index.gin",
    waits=True,
    once=_ONCE.value,
    publish_if_better=_PUBLISH_IF_BETTER.value,
  )
  from realm_jax.partitioning import cpu_tuning

  cpu_tuning.keep_freed_memory()
  published = build_index()
  logging.info("done: published %s", published or "nothing")


if __name__ == "__main__":
  supervisor.supervise_this_command("snapshots")
  from realm_jax.configuration import command_line

  command_line.run(main, on_devices=True, is_supervised=True)
