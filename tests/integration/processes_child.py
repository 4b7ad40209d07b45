"""One of several processes that train stages together, and evaluate.

    python -m tests.integration.processes_child ADDRESS COUNT INDEX \
      WORLD BEFORE FOLDER NUM_STEPS
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from unittest import mock

from realm_jax.errors import RealmError
from realm_jax.evaluation import outputs, parts
from realm_jax.partitioning import cpu_tuning, processes
from realm_jax.training import trainer
from tests import tiny_world
from tests.counted_searches import counted_searches
from tests.integration.commands import EVALUATIONS, Commands

_STOPS_BEFORE = 0


def _preempt_in_a_step() -> None:
  """Sends this process SIGTERM, as maintenance does, when a step starts."""

  class Watched(trainer.CompiledSteps):
    def __call__(self, state, batch, searched, step):
      if step == _STOPS_BEFORE:
        os.kill(os.getpid(), signal.SIGTERM)
      return super().__call__(state, batch, searched, step)

  trainer.CompiledSteps = Watched


def main() -> None:
  address, count, index, world, *folders, num_steps = sys.argv[1:]
  before, folder = map(Path, folders)
  steps = int(num_steps)
  cpu_tuning.disable_async_dispatch()
  processes.initialize(address, int(count), int(index))
  commands = Commands(tiny_world.World(Path(world)))
  # Killed before its second checkpoint, a run is compared with its sources.
  for last in (0, steps):
    commands.train_stage("open_qa", folder, before, NUM_STEPS=last)
  # What each process finds takes several pieces.
  outputs._CHARACTERS_PER_PIECE = 200
  parts._MAX_LINES = 1
  try:
    commands.evaluate("eval", before, folder / "own" / index)
  except RealmError as error:
    (folder / f"{index}.txt").write_text(str(error))
  broken_off = mock.patch.object(outputs, "merge", side_effect=RealmError)
  with contextlib.suppress(RealmError), broken_off:
    commands.evaluate("eval", before, folder / "eval" / "both")
  for recipe in EVALUATIONS:
    with counted_searches() as counts:
      metrics = commands.evaluate(recipe, before, folder / recipe / "both")
    found = {"figures": metrics, "searches": len(counts)}
    (folder / recipe / f"{index}.json").write_text(json.dumps(found))
  if int(index) == 1:
    _preempt_in_a_step()
  result = commands.train_stage(
    "inverse_cloze", folder, before, NUM_STEPS=steps
  )
  assert result.preempted
  processes.leave(0)


if __name__ == "__main__":
  main()
