"""Commands that own devices, which several processes may run together.

On TPU slices, and wherever else jax detects a cluster, every host starts the
command as it is. Elsewhere flags say where the processes meet:

    python -m realm_jax.train … --coordinator_address=HOST:PORT \\
      --num_processes=2 --process_id=0
"""

import functools
import traceback
from collections.abc import Callable, Sequence

from absl import flags

from realm_jax import configuration

configuration.define_run_flags()
_COORDINATOR_ADDRESS = flags.DEFINE_string(
  "coordinator_address", None, "HOST:PORT of process 0."
)
_NUM_PROCESSES = flags.DEFINE_integer(
  "num_processes", None, "Number of processes that run this command together."
)
_PROCESS_ID = flags.DEFINE_integer(
  "process_id", None, "Number of this process, from 0."
)
_HEARTBEAT_TIMEOUT = flags.DEFINE_integer(
  "heartbeat_timeout_seconds",
  100,
  "Seconds without a sign of life after which a process is taken for dead.",
  lower_bound=1,
)
_INITIALIZATION_TIMEOUT = flags.DEFINE_integer(
  "initialization_timeout_seconds",
  300,
  "Seconds to wait until all processes have started.",
  lower_bound=1,
)


def run(
  main: Callable[[Sequence[str]], int | None], *, takes_texts: bool = False
) -> None:
  """Runs an entry point's `main(argv)` on the devices of all processes."""
  configuration.run(
    functools.partial(_on_all_processes, main), takes_texts=takes_texts
  )


def _on_all_processes(
  main: Callable[[Sequence[str]], int | None], argv: Sequence[str]
) -> int:
  """Starts jax's processes around `main`, which ends on all or on none."""
  # After the flags are parsed: it imports jax.
  from realm_jax.partitioning import processes

  def connected(argv: Sequence[str]) -> int | None:
    processes.initialize(
      _COORDINATOR_ADDRESS.value,
      _NUM_PROCESSES.value,
      _PROCESS_ID.value,
      heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT.value,
      initialization_timeout_seconds=_INITIALIZATION_TIMEOUT.value,
    )
    return main(argv)

  try:
    code = configuration.exit_code(connected, argv)
  except BaseException:
    if processes.is_alone():
      raise
    traceback.print_exc()
    code = 1
  processes.leave(code)
  return code
