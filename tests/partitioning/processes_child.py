"""One of two processes that agree, print what they see, and lose step.

python -m tests.partitioning.processes_child ADDRESS INDEX TIMEOUT_SECONDS
"""

import dataclasses
import json
import sys
import threading

import jax

from realm_jax.partitioning import processes
from realm_jax.partitioning.agreement import Agreement
from realm_jax.partitioning.processes import ProcessesError
from realm_jax.storage.local_disk import DiskFullError


def _agree(index: int) -> None:
  """Prints what a process sees of agreements, the last of which fails."""
  stop = Agreement("end").stop_event(threading.Event())
  agreement = Agreement("loop", while_waiting=stop.is_set)
  seen = {
    "stopped": [stop.is_set()],
    "sums": [
      agreement.exchange(f"sum {i}", i * (index + 1), sum) for i in range(50)
    ],
    "errors": [],
  }
  kind = dataclasses.make_dataclass("Config", ["corpus_dir", "batch_size"])
  config = kind(f"/host{index}", batch_size=8 * (index + 1))
  for attempt in (
    lambda: agreement.on_process_0("file", _fail),
    lambda: agreement.on_all_processes("file", _fail if index else lambda: 0),
    lambda: agreement.require_same({"Config": config}),
  ):
    try:
      attempt()
    except (DiskFullError, ProcessesError) as error:
      seen["errors"].append(str(error))
  if index:
    stop.set()
  # The one that is stopped tells the other, for which it waits.
  seen["stopped"].append(agreement.on_process_0("wait", lambda: _is_set(stop)))
  seen["keys"] = len(processes.store().key_value_dir_get("realm_jax/"))
  print(json.dumps(seen))
  agreement.exchange(f"of process {index}", None, lambda facts: None)


def _is_set(stop: threading.Event) -> bool:
  """Waits until another process has set an event."""
  return any(stop.wait(0.1) for _ in range(300))


def _fail() -> None:
  raise DiskFullError("no space")


def main() -> None:
  jax.config.update("jax_platforms", "cpu")
  address, index, timeout_seconds = sys.argv[1], *map(int, sys.argv[2:])
  try:
    processes.initialize(
      address,
      num_processes=2,
      process_id=index,
      initialization_timeout_seconds=timeout_seconds,
    )
    _agree(index)
  except ProcessesError as error:
    print(error)
    processes.leave(2)


if __name__ == "__main__":
  main()
