"""What a launch would start, in words."""

import shlex
from collections.abc import Sequence

from launch.cluster import pod
from launch.jobs import Job
from launch.local.process_commands import processes_of

_COORDINATOR = "localhost:PORT"


def description(jobs: Sequence[Job]) -> str:
  """Returns each job's schedule, devices, environment and commands."""
  return "\n\n".join("\n".join(_lines(job)) for job in jobs)


def _lines(job: Job) -> list[str]:
  lines = [job.name, f"  runs {job.schedule.value}", *_resources(job)]
  lines += [
    f"  environment: {name}={shlex.quote(value)}"
    for name, value in sorted(job.environment.items())
  ]
  if job.tpu is not None:
    commands = [pod.command_of(job)]
  else:
    processes = processes_of(job, _COORDINATOR)
    commands = [["python", *process.arguments] for process in processes]
  return lines + [f"  $ {shlex.join(command)}" for command in commands]


def _resources(job: Job) -> list[str]:
  if job.tpu is None:
    processes = "process" if job.processes == 1 else "processes"
    return [f"  {job.processes} {processes} on this machine"]
  tpu = job.tpu
  return [
    f"  TPU {tpu}",
    f"  {tpu.hosts} × {tpu.machine_type} of {tpu.generation.accelerator}, each "
    f"with google.com/tpu: {tpu.chips_per_host}",
  ]
