"""Trains the demo's first stages in a small world, and prints their figures.

    python -m tests.experiments.realm_learns_child FOLDER

A process of its own, with one device, some of XLA's optimizations, and memory
that it keeps.
"""

import json
import sys
from pathlib import Path

from experiments.demo.stages import ICT, REALM, STATEMENTS, Demo
from experiments.pipeline import run
from realm_jax.partitioning import cpu_tuning

_SMALL = """
from __gin__ import dynamic_registration
from experiments.world import world
world.WorldConfig.num_people = 30
world.WorldConfig.num_cities = 30
world.WorldConfig.num_companies = 12
# Each shape and each length is compiled.
MAX_SHAPE_BUCKETS = 1
NUM_LENGTHS = 1
"""
_ICT_STEPS, _READING_STEPS, _STEPS = 40, 150, 150


def main() -> None:
  """Trains all stages; the last line printed has the figures as JSON."""
  folder = Path(sys.argv[1])
  (folder / "small.gin").write_text(_SMALL)
  cpu_tuning.disable_async_dispatch()
  cpu_tuning.keep_freed_memory()
  demo = Demo(folder, [str(folder / "small.gin")])
  demo.generate_world()
  cloze = demo.train(
    *(ICT, "inverse_cloze"),
    NUM_STEPS=_ICT_STEPS,
    WARMUP_STEPS=10,
    SAVE_EVERY_STEPS=_ICT_STEPS,
    BATCH_SIZE=64,
  )
  reading = demo.train(
    *("reading", "reading"),
    NUM_STEPS=_READING_STEPS,
    WARMUP_STEPS=40,
    SAVE_EVERY_STEPS=_READING_STEPS,
  )
  realm = demo.train(
    *(REALM, "pretrain", cloze, reading),
    # Each is used from a fixed step, however busy the machine is.
    demo.command("build_index", "build_index", folder / REALM, MODE="every"),
    NUM_STEPS=_STEPS,
    BATCH_SIZE=32,
    NUM_CANDIDATES=6,
    LEARNING_RATE=1e-3,
    WARMUP_STEPS=20,
    SAVE_EVERY_STEPS=25,
    LAG_STEPS=25,
    WAIT_FOR_SNAPSHOTS=True,
  )
  run(realm)
  recalls = [
    demo.recalls(one, step, STATEMENTS)["recall_at_5"]
    for one, step in ((cloze, _ICT_STEPS), (realm, _STEPS))
  ]
  masked = run(
    demo.evaluate("masked", "eval_masked", realm, NUM_BATCHES=16)
  ).figures()
  print(json.dumps({"recalls": recalls, "masked": masked}))


if __name__ == "__main__":
  main()
