"""Trains one stage: `python -m realm_jax.train --gin_file=gin/runs/….gin`.

The gin file chooses the stage: inverse cloze, reading, REALM pre-training or
open QA. The files under gin/runs/ say what each needs.

MODEL_DIR keeps the configuration. To resume a run, or to use any other command
on it, pass `--model_dir` alone.

The command starts a second process, which trains, and restarts it until the run
is complete (`realm_jax/supervisor.py`). With `--max_restarts=0` it trains in
its own process.
"""

from collections.abc import Sequence

from realm_jax import supervisor


def main(argv: Sequence[str]) -> None:
  """Trains the run that gin configures."""
  del argv
  from absl import logging

  from realm_jax.configuration import command_line
  from realm_jax.partitioning import cpu_tuning

  cpu_tuning.disable_async_dispatch()
  config = command_line.configured("realm_jax.training.config:TrainConfig")()
  cpu_tuning.keep_freed_memory()
  # Imported late, because it imports TensorFlow: wrong settings fail fast.
  from realm_jax.training import trainer

  result = trainer.train(config)
  if result.step < config.num_steps:
    logging.info(
      "stopped at step %d of %d; the same command continues",
      *(result.step, config.num_steps),
    )
  else:
    logging.info("done: step %d", result.step)


if __name__ == "__main__":
  # Before other imports: the supervisor needs neither jax nor gin in memory.
  supervisor.supervise_this_command("checkpoints")
  from realm_jax.configuration import command_line

  command_line.run(main, on_devices=True, is_supervised=True)
