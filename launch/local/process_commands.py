"""The processes of a job on this machine, and how they find each other."""

import dataclasses
import socket

from launch.jobs import Job


@dataclasses.dataclass(frozen=True, eq=False)
class JobProcess:
  """One process of a job, which equals no other.

  Attributes:
    name: Name of the process: `trainer`, or `trainer-0` if there are several.
    job: Job that it belongs to.
    arguments: Arguments of the Python interpreter.
  """

  name: str
  job: Job
  arguments: tuple[str, ...]


def processes_of(job: Job, coordinator_address: str) -> list[JobProcess]:
  """Returns the processes of a job.

  Several processes are told where process 0 waits for the others
  (`realm_jax/configuration/command_line.py`).
  """
  if job.processes == 1:
    return [JobProcess(job.name, job, job.arguments)]
  return [
    JobProcess(
      f"{job.name}-{index}",
      job,
      (
        *job.arguments,
        f"--coordinator_address={coordinator_address}",
        f"--num_processes={job.processes}",
        f"--process_id={index}",
      ),
    )
    for index in range(job.processes)
  ]


def free_address() -> str:
  """Returns an address of this machine that nothing listens at."""
  with socket.socket() as found:
    found.bind(("localhost", 0))
    return f"localhost:{found.getsockname()[1]}"
