"""One of two processes that agree on decisions, and print what they see.

python -m tests.partitioning.processes_child ADDRESS INDEX SCENARIO
"""

import json
import os
import signal
import sys

import jax

from realm_jax.partitioning import processes
from realm_jax.partitioning.agreement import Agreement
from realm_jax.partitioning.processes import ProcessesError


def _agree(index: int) -> dict:
  """What a process sees of decisions that all take well."""
  agreement = Agreement("loop", while_waiting=lambda: None)
  seen = {
    "sums": [
      agreement.decide(f"sum {i}", i * (index + 1), sum) for i in range(300)
    ],
    "led": agreement.led("name", lambda: f"of process {index}"),
    "everywhere": agreement.everywhere("own", lambda: index),
  }
  for name, compute in (
    ("led fails", lambda: agreement.led("file", _fail, (OSError,))),
    (
      "one fails otherwise",
      lambda: agreement.everywhere(
        "file", _miss if index else lambda: 0, (ValueError, OSError)
      ),
    ),
    (
      "one fails",
      lambda: agreement.everywhere(
        "file", _fail if index else lambda: 0, (OSError,)
      ),
    ),
  ):
    try:
      compute()
    except OSError as error:
      seen[name] = str(error)
  try:
    agreement.require_same({"BATCH_SIZE": str(8 * (index + 1)), "SEED": "0"})
  except ProcessesError as error:
    seen["different"] = str(error)
  flag = agreement.flag("stop")
  if index:
    flag.set()
  agreement.decide("one has set it", None, lambda facts: None)
  seen["flag"] = flag.is_set()
  another = Agreement("loop")
  seen["again"] = another.decide("sum 0", index, sum)
  store = processes.store().key_value_dir_get("realm_jax/")
  seen["keys"] = len([key for key, _ in store if "/flags/" not in key])
  agreement.decide("all have looked", None, lambda facts: None)
  return seen


def _fail() -> None:
  raise OSError("the disk is gone")


def _miss() -> None:
  raise FileNotFoundError("no such file")


def _lose_step(index: int) -> dict:
  try:
    Agreement("loop").decide(f"of process {index}", None, lambda facts: None)
  except ProcessesError as error:
    return {"error": str(error)}
  return {}


def _lose_a_process(index: int) -> dict:
  """Waits in process 0 for a decision, when process 1 has been killed."""
  agreement = Agreement("loop")
  agreement.decide("both are there", None, lambda facts: None)
  print("{}", flush=True)
  if index:
    os.kill(os.getpid(), signal.SIGKILL)
  return agreement.decide("one is missing", None, lambda facts: {})


def main() -> None:
  address, index, scenario = sys.argv[1], int(sys.argv[2]), sys.argv[3]
  jax.config.update("jax_platforms", "cpu")
  try:
    processes.initialize(
      processes.ProcessFlags(
        address,
        num_processes=2,
        process_id=index,
        heartbeat_timeout_seconds=10,
        initialization_timeout_seconds=60 if scenario != "alone" else 2,
      )
    )
    seen = {
      "agree": _agree,
      "lose step": _lose_step,
      "lose a process": _lose_a_process,
    }[scenario](index)
  except ProcessesError as error:
    seen = {"error": str(error)}
  print(json.dumps(seen), flush=True)
  processes.leave(2 if "error" in seen else 0)


if __name__ == "__main__":
  main()
