"""A trainer that records when each decision of a step began and ended.

It is `realm_jax.train` otherwise, and takes its flags. The times are written to
MODEL_DIR/decisions<process>.json when the run ends. With `--decide_alone` no
process asks the others about a step, which shows what asking costs. That is for
runs in which nothing could be decided otherwise: of one generation, and of one
shape bucket.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from absl import flags

from realm_jax import configuration, device_command
from realm_jax.files.json_file import write_json
from realm_jax.partitioning import cpu_tuning
from realm_jax.training import loop
from realm_jax.training import run as training_run
from realm_jax.training.config import TrainConfig
from realm_jax.training.decisions import Decisions, StepDecision, StepFacts

_DECIDE_ALONE = flags.DEFINE_bool(
  "decide_alone", False, "No process asks the others about a step."
)


def file_of(model_dir: Path, process: int) -> Path:
  """Returns the file of the times of a process."""
  return model_dir / f"decisions{process}.json"


class TimedDecisions(Decisions):
  """Decisions that keep the times around each decision of a step.

  Attributes:
    times: Step, and the seconds on the clock of the machine before and after.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, **kwargs)
    if _DECIDE_ALONE.value:
      self._steps.count = 1
    self.times: list[list[float]] = []

  def of_step(self, step: int, facts: StepFacts) -> StepDecision:
    began = time.monotonic()
    decision = super().of_step(step, facts)
    self.times.append([step, began, time.monotonic()])
    return decision


def main(argv: Sequence[str]) -> None:
  """Trains the run that gin configures, and writes the times."""
  del argv
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  config = configuration.call(TrainConfig)
  kept: list[TimedDecisions] = []

  def make(*args: Any, **kwargs: Any) -> TimedDecisions:
    kept.append(TimedDecisions(*args, **kwargs))
    return kept[-1]

  with mock.patch.object(training_run, "Decisions", make):
    loop.train(config)
  file = file_of(Path(str(config.model_dir)), kept[0].loop.index)
  write_json(file, kept[0].times)


if __name__ == "__main__":
  device_command.run(main)
