"""Starts the processes of a run together, and ends one on failure."""

import contextlib
import os
import sys
import threading
import time
from typing import Any

import jax
from jax._src import distributed

from realm_jax.errors import ExitCode, RealmError

# Prefix of this package's keys in jax's key-value store.
PREFIX = "realm_jax"
# Key of the last failed process: its number and exit code.
_FAILED = f"{PREFIX}/failed"
# Time that process 0, which serves the store, stays after it has failed, so
# that the others can read the reason.
_FAREWELL_SECONDS = 3.0
# Difference between jax's timeout for other processes and ours, which is
# shorter.
_MARGIN_SECONDS = 60
_NO_CLUSTER = "coordinator_address should be defined"


class ProcessesError(RealmError):
  """The processes of a run cannot start, differ, or one of them has failed."""


class LostProcessError(ProcessesError):
  """Another process of the run has failed, or does not answer.

  Attributes:
    exit_code: Code of the failed process, so that all processes end with it.
  """

  def __init__(self, message: str, exit_code: int = ExitCode.LOST_PROCESS):
    super().__init__(message)
    self.exit_code = exit_code


def initialize(
  coordinator_address: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  heartbeat_timeout_seconds: int = 100,
  initialization_timeout_seconds: int = 300,
) -> None:
  """Starts `jax.distributed`, unless this process is alone.

  With none of the first three arguments, jax uses the cluster that it detects
  (TPU slices, Slurm, Open MPI, Kubernetes); without a cluster, there is one
  process and nothing is started. Call this before jax looks for its devices.

  A process that has waited in vain for the others ends with an error of one
  line. If a process is considered dead, all others are stopped.

  Args:
    coordinator_address: HOST:PORT of process 0.
    num_processes: Number of processes that run this command together.
    process_id: Number of this process, from 0.
    heartbeat_timeout_seconds: Seconds without a heartbeat after which a process
      is considered dead.
    initialization_timeout_seconds: Seconds to wait until all processes have
      started.

  Raises:
    ProcessesError: The arguments are incomplete or wrong.
  """
  arguments = coordinator_address, num_processes, process_id
  if None in arguments and set(arguments) != {None}:
    raise ProcessesError(
      "--coordinator_address, --num_processes and --process_id belong "
      "together: give all three, or none where jax detects the cluster"
    )
  if num_processes == 1:
    return
  # Its SIGTERM handler would conflict with ours, which goes through the
  # decisions of the loop.
  jax.config.update("jax_enable_preemption_service", False)

  def end_without_the_others() -> None:
    all_of_them = "" if num_processes is None else f" {num_processes}"
    print(
      f"not all{all_of_them} processes started within "
      f"{initialization_timeout_seconds} s; start one with each --process_id "
      "from 0 on, and the same --coordinator_address",
      file=sys.stderr,
      flush=True,
    )
    os._exit(ExitCode.LOST_PROCESS)

  # Fires before jax's own timeout, which aborts with stack traces.
  deadline = threading.Timer(
    initialization_timeout_seconds, end_without_the_others
  )
  deadline.daemon = True
  deadline.start()
  try:
    jax.distributed.initialize(
      *arguments,
      heartbeat_timeout_seconds=heartbeat_timeout_seconds,
      initialization_timeout=initialization_timeout_seconds + _MARGIN_SECONDS,
    )
  except ValueError as error:
    if _NO_CLUSTER not in str(error):
      raise ProcessesError(str(error)) from error
  finally:
    deadline.cancel()


def is_alone() -> bool:
  """Returns whether this process is the only one of its run."""
  state = distributed.global_state
  return state.client is None or state.num_processes == 1


def leave(code: int) -> None:
  """Ends this process if it is one of several, without waiting for the others.

  jax would wait for them when the process ends. If this process has failed, it
  tells the others, so that they do not wait for it either.
  """
  if is_alone():
    return
  if code == 0:
    jax.distributed.shutdown()
    return
  index = distributed.global_state.process_id
  # Without process 0, there is no store.
  with contextlib.suppress(RuntimeError):
    store().key_value_set(_FAILED, f"{index} {code}", allow_overwrite=True)
  sys.stdout.flush()
  sys.stderr.flush()
  if index == 0:
    time.sleep(_FAREWELL_SECONDS)
  os._exit(code)


def require_no_failure() -> None:
  """Checks that no other process has failed, without waiting for any.

  Raises:
    LostProcessError: Another process has failed.
  """
  failed = None if is_alone() else stored(_FAILED)
  if failed is None:
    return
  process, code = map(int, failed.split())
  if process != distributed.global_state.process_id:
    raise LostProcessError(
      f"process {process} has failed, and its log says why; start all "
      "processes again",
      code,
    )


def stored(key: str) -> str | None:
  """Returns the current value of a key in the store, or None."""
  try:
    return store().key_value_try_get(key)
  except RuntimeError:
    return None


def store() -> Any:
  """Returns the client of jax's key-value store; None if it was not started.

  The store belongs to jax's coordination service and has no public interface;
  only this file accesses it. The client has no types.
  """
  return distributed.global_state.client
