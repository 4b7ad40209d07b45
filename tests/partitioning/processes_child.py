"""One of two processes that agree, and print what they see.

python -m tests.partitioning.processes_child ADDRESS INDEX SCENARIO
"""

import dataclasses
import json
import os
import signal
import sys
import threading

import jax

from realm_jax.partitioning import processes
from realm_jax.partitioning.agreement import Agreement
from realm_jax.partitioning.processes import ProcessesError


@dataclasses.dataclass
class _Config:
  corpus_dir: str
  batch_size: int


def _agree(index: int) -> dict:
  """What a process sees of agreements that all take well."""
  stop = Agreement("end").stop_event(threading.Event())
  agreement = Agreement("loop", while_waiting=stop.is_set)
  seen = {
    "stopped": [stop.is_set()],
    "sums": [
      agreement.exchange(f"sum {i}", i * (index + 1), sum) for i in range(300)
    ],
    "first": agreement.on_process_0("name", lambda: f"of process {index}"),
    "own": agreement.on_all_processes("own", lambda: index),
    "errors": [],
  }
  config = _Config(f"/host{index}", batch_size=8 * (index + 1))
  for attempt in (
    lambda: agreement.on_process_0("file", _fail, (OSError,)),
    lambda: agreement.on_all_processes(
      "file", _fail if index else lambda: 0, (OSError,)
    ),
    lambda: agreement.require_same({"Config": config}),
  ):
    try:
      attempt()
    except (OSError, ProcessesError) as error:
      seen["errors"].append(str(error))
  if index:
    stop.set()
  # The one that is stopped tells the other, for which it waits.
  seen["stopped"].append(agreement.on_process_0("wait", lambda: _is_set(stop)))
  another = Agreement("loop")
  seen["again"] = another.exchange("sum 0", index, sum)
  store = processes.store().key_value_dir_get("realm_jax/")
  seen["keys"] = len(store)
  another.exchange("all have looked", None, lambda facts: None)
  return seen


def _is_set(stop: threading.Event) -> bool:
  """Waits until another process has set an event."""
  return any(stop.wait(0.1) for _ in range(300))


def _fail() -> None:
  raise FileNotFoundError("no such file")


def _lose_step(index: int) -> None:
  Agreement("loop").exchange(f"of process {index}", None, lambda facts: None)


def _lose_a_process(index: int) -> None:
  """Waits in process 0 for a decision, when process 1 has been killed."""
  agreement = Agreement("loop")
  agreement.exchange("both are there", None, lambda facts: None)
  print("{}", flush=True)
  if index:
    os.kill(os.getpid(), signal.SIGKILL)
  agreement.exchange("one is missing", None, lambda facts: None)


_SCENARIOS = {
  "agree": _agree,
  "lose step": _lose_step,
  "lose a process": _lose_a_process,
}


def main() -> None:
  address, index, scenario = sys.argv[1], int(sys.argv[2]), sys.argv[3]
  jax.config.update("jax_platforms", "cpu")
  try:
    processes.initialize(
      address,
      num_processes=2,
      process_id=index,
      heartbeat_timeout_seconds=10,
      initialization_timeout_seconds=2 if scenario == "alone" else 60,
    )
    seen = _SCENARIOS[scenario](index)
  except ProcessesError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    processes.leave(2)
  print(json.dumps(seen), flush=True)
  processes.leave(0)


if __name__ == "__main__":
  main()
