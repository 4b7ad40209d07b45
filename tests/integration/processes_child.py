"""One of several processes that train stages together, and evaluate.

    python -m tests.integration.processes_child ADDRESS COUNT INDEX \
      WORLD BEFORE FOLDER NUM_STEPS
"""

import json
import os
import signal
import sys
from pathlib import Path

from realm_jax.evaluation import outputs
from realm_jax.partitioning import cpu_tuning, processes
from realm_jax.training import trainer
from tests import tiny_world
from tests.integration import stages
from tests.integration.commands import Commands

_STOPS_BEFORE = 5


def _preempt_in_a_step() -> None:
  """Sends this process SIGTERM, as maintenance does, when a step starts."""

  class Watched(trainer.CompiledSteps):
    def __call__(self, state, batch, searched, step):
      if step == _STOPS_BEFORE:
        os.kill(os.getpid(), signal.SIGTERM)
      return super().__call__(state, batch, searched, step)

  trainer.CompiledSteps = Watched


def main() -> None:
  address, count, index, world, before, folder, num_steps = sys.argv[1:]
  cpu_tuning.disable_async_dispatch()
  processes.initialize(address, int(count), int(index))
  commands = Commands(tiny_world.World(Path(world)))
  for stage in stages.OF_SEVERAL_PROCESSES:
    stages.train(
      commands,
      stage,
      Path(folder),
      Path(before),
      NUM_STEPS=int(num_steps),
    )
  # What each process finds takes several pieces.
  outputs._CHARACTERS_PER_PIECE = 200
  for recipe in stages.EVALUATIONS:
    figures = stages.evaluate(
      commands, recipe, Path(before), Path(folder) / recipe / index
    )
    (Path(folder) / recipe / f"{index}.json").write_text(json.dumps(figures))
  # Killed before its second checkpoint, a run is compared with its sources.
  for _ in range(2):
    commands.train(
      "inverse_cloze",
      Path(folder) / "restarted",
      INITIAL_CHECKPOINT=Path(before) / "inverse_cloze",
      NUM_STEPS=0,
      FSDP=4,
    )
  if int(index) == 1:
    _preempt_in_a_step()
  result = stages.train(
    commands,
    "inverse_cloze",
    Path(folder) / "preempted",
    Path(before),
    NUM_STEPS=int(num_steps),
  )
  assert result.preempted
  processes.leave(0)


if __name__ == "__main__":
  main()
