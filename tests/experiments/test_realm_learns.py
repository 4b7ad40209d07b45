"""REALM pre-training makes a better retriever of that of inverse cloze.

The stages are trained in a process of its own, with one device, some of XLA's
optimizations, and memory that it keeps.
"""

import json
import sys
from pathlib import Path

import pytest

from experiments.demo.stages import ICT, REALM, STATEMENTS, Demo
from experiments.pipeline import run
from realm_jax.partitioning import cpu_tuning

pytestmark = pytest.mark.slow

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
_MODULE = "tests.experiments.test_realm_learns"
_ICT_STEPS, _READING_STEPS, _STEPS = 40, 150, 150


def main() -> None:
  """Trains the demo's first stages; the last line has the figures as JSON."""
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
  ranks = [
    demo.recalls(one, step, STATEMENTS)["mrr"]
    for one, step in ((cloze, _ICT_STEPS), (realm, _STEPS))
  ]
  masked = run(
    demo.evaluate("masked", "eval_masked", realm, NUM_BATCHES=16)
  ).figures()
  print(json.dumps({"mrr": ranks, "masked": masked}))


def test_pretraining_finds_more_than_inverse_cloze_and_reads_it(
  command_server, command_environment, tmp_path
):
  # Without any optimization, hundreds of steps are slow.
  level = "--xla_backend_optimization_level"
  flags = command_environment["XLA_FLAGS"].replace(f"{level}=0", f"{level}=1")
  done = command_server.run(
    [sys.executable, "-m", _MODULE, str(tmp_path)],
    env={**command_environment, "XLA_FLAGS": flags},
    timeout=3000.0,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  figures = json.loads(done.stdout.splitlines()[-1])
  masked = figures["masked"]
  # Worlds and runs of the seeds 0, 1 and 2: 0.42, 0.28 and 0.11.
  assert masked["retrieval_utility"] >= 0.05, figures
  # Of seed 0 alone. Four runs had 0.25 after inverse cloze, and 0.31 to 0.38
  # after REALM; seed 1 had 0.27 and 0.32, and seed 2 lost: 0.30 and 0.19.
  inverse_cloze, realm = figures["mrr"]
  assert realm >= inverse_cloze + 0.03, figures
  # Untrained it has 0.12.
  assert inverse_cloze >= 0.2, figures
  # 0.100, and 0.057 without candidates; seed 1 gained 0.03, seed 2 −0.01.
  gain = masked["masked_accuracy"] - masked["masked_accuracy_null"]
  assert gain >= 0.02, figures


if __name__ == "__main__":
  main()
