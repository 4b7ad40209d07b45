"""XManager: processes of this machine, and work units of XManager on Cloud."""

import asyncio
import contextlib
import functools
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from xmanager import xm, xm_local
from xmanager.xm_local import executables

from launch.cluster import pod
from launch.cluster.image import docker_instructions
from launch.cluster.work_units import UnitStatus
from launch.jobs import Job, Schedule
from launch.local.process_commands import JobProcess
from launch.local.signals import run_until_signal
from launch.local.supervision import Supervisor, describe

_READ_SECONDS = 5.0


class LocalProcesses:
  """Processes of this machine, whose output is shown with their names."""

  def __init__(self, experiment: xm.Experiment):
    self._experiment = experiment
    # XManager starts a binary through a shell. A signal would end the shell
    # and leave the job running, so `exec` replaces the shell by the job.
    self._python = executables.LocalBinary(
      "python", command="exec", args=xm.merge_args([sys.executable])
    )
    self._started: dict[JobProcess, asyncio.subprocess.Process] = {}

  async def start(self, process: JobProcess) -> None:
    """Starts a process, each line of whose output follows its name."""
    command = shlex.join(["python", *process.arguments])
    print(f"[{process.name}] $ {command}", flush=True)
    unit = await self._experiment.add(
      xm.Job(
        self._python,
        xm_local.Local(),
        name=process.name,
        args=list(process.arguments),
        env_vars=dict(process.job.environment),
      )
    )
    self._started[process] = _process_of(unit)

  async def ended(self, process: JobProcess) -> int:
    """Waits for a process and its last output, and returns its exit code."""
    started = self._started[process]
    code = await started.wait()
    assert started.stdout is not None
    # XManager reads it. A process that this one has left behind may write on.
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(_READ_SECONDS):
        while not started.stdout.at_eof():
          await asyncio.sleep(0.01)
    print(f"[{process.name}] ended with {describe(code)}", flush=True)
    return code

  def terminate(self, process: JobProcess) -> None:
    """Sends SIGTERM, on which the trainer saves a checkpoint."""
    with contextlib.suppress(ProcessLookupError):
      self._started[process].terminate()

  def kill(self, process: JobProcess) -> None:
    """Sends SIGKILL to the process and its children.

    XManager starts each process in a session of its own.
    """
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._started[process].pid, signal.SIGKILL)


def _process_of(unit: xm.ExperimentUnit) -> asyncio.subprocess.Process:
  """Returns the process of a local unit with one job.

  XManager keeps processes in a private attribute. Its public `stop` is not
  implemented for them, and a unit's exit code is nowhere else.
  """
  [handle] = unit._local_execution_handles  # pyrefly: ignore
  return handle.process


async def run_locally(
  name: str, jobs: Sequence[Job], *, grace_seconds: float
) -> NoReturn:
  """Runs the jobs as processes of this machine and waits for them.

  Raises:
    SystemExit: Always. The code is 0, or that of the first process that failed;
      if a signal ended it or this process, 128 plus the signal, as in shells.
  """
  async with xm_local.create_experiment(name) as experiment:
    processes = LocalProcesses(experiment)
    supervisor = Supervisor(processes, grace_seconds=grace_seconds)
    code = await run_until_signal(supervisor.run(jobs))
    # Without an exception, XManager would wait for its units again and raise
    # for those that were stopped.
    raise SystemExit(code)


def cloud_job(
  job: Job,
  image: xm.Executable,
  *,
  max_restarts: int,
  service_account: str | None = None,
) -> xm.Job:
  """Returns a job for XManager on Cloud, on its TPU slice.

  A replica is a process, and each host of a slice runs one. XManager infers the
  number from the topology for GPUs, but not for TPUs. When one process fails,
  all others of the job end, too, so that a restart takes as many retries as the
  slice has hosts.
  """
  from xmanager import xm_cloud

  assert job.tpu is not None
  dependency = None
  if job.schedule is Schedule.AFTER:
    dependency = xm_cloud.executor.Dependency(
      "trainer", xm_cloud.executor.JobDependencyState.COMPLETED
    )
  return xm.Job(
    image,
    xm_cloud.KubernetesJobExecutor(
      xm.JobRequirements(
        {f"tpu_{job.tpu.generation.name}": job.tpu.topology},
        replicas=job.tpu.hosts,
      ),
      replica_retry_limit=max_restarts * job.tpu.hosts,
      dependency=dependency,
      service_account=service_account,
    ),
    name=job.name,
    env_vars=dict(job.environment),
  )


def image_of(
  job: Job, clone: Path, *, registry: str, base_image: str
) -> xm.Packageable:
  """Returns the image that runs one job.

  The image contains the job's command: XManager on Cloud passes arguments by
  name, so that a flag could be given only once, and there are several gin
  files. `exec` replaces the shell, which would not pass SIGTERM on.
  """
  from xmanager import xm_cloud

  command = ["exec", *pod.command_of(job)]
  return xm.python_container(
    xm_cloud.KubernetesJobExecutor.Spec(
      container_registry=registry, image_name=f"realm-jax-{job.name}"
    ),
    xm.CommandList([shlex.join(command)]),
    path=str(clone),
    base_image=base_image,
    docker_instructions=docker_instructions(clone),
  )


class CloudExperiment:
  """An experiment of XManager on Cloud: its work units, each with its jobs.

  Args:
    title: Title that XManager shows.
    queue: Queue of the cluster; None is XManager's default.
  """

  def __init__(self, title: str, *, queue: str | None):
    from xmanager import xm_cloud

    self._cloud = xm_cloud
    self._experiment = xm_cloud.create_experiment(title)
    self._settings = xm_cloud.WorkUnitSettings
    if queue is not None:
      self._settings = functools.partial(
        xm_cloud.WorkUnitSettings,
        scheduling_constraints=xm_cloud.SchedulingConstraints(queue_name=queue),
      )

  @property
  def name(self) -> str:
    """Name by which XManager's commands know it."""
    return self._experiment.resource_name

  def submit(
    self,
    units: Sequence[Sequence[Job]],
    images: Sequence[xm.Packageable],
    *,
    max_restarts: int,
    service_account: str | None,
  ) -> None:
    """Builds the images and submits the jobs.

    Args:
      units: Jobs of each work unit. The first unit is the run itself; the
        others are auxiliary, and do not keep it from being complete.
      images: Image of each job, in the order of `units`.
      max_restarts: Restarts of each job.
      service_account: The cluster's service account for the jobs.
    """
    # Modules that protobuf generates have no types.
    proto: Any = self._cloud.experiment.work_unit_pb2
    types = proto.WorkUnit
    with self._experiment as experiment:
      built = iter(experiment.package(images))
      for number, jobs in enumerate(units):
        group = {
          job.name: cloud_job(
            job,
            next(built),
            max_restarts=max_restarts,
            service_account=service_account,
          )
          for job in jobs
        }
        kind = types.AUXILIARY if number else types.STANDARD
        # Without `args`, the client takes the jobs' environments for arguments
        # of their commands, and fails.
        experiment.add(
          xm.JobGroup(**group),
          args={},
          settings=self._settings(work_unit_type=kind),
        )

  def statuses(self) -> list[UnitStatus]:
    """Asks XManager for the state of each work unit."""
    # These are the first hundred; `list_all_work_units` never ends, since it
    # takes an empty token for that of another page. They are typed as units of
    # any XManager, not of that on Cloud.
    units: dict[int, Any] = dict(self._experiment.work_units)
    return [status_of(unit.work_unit_proto) for unit in units.values()]

  def stop(self) -> None:
    """Stops all work units."""
    from xmanager_cloud.experiment_state_server import experiment_state_api
    from xmanager_cloud.experiment_state_server.proto import api_pb2

    api: Any = api_pb2
    experiment_state_api.get_experiment_state_api().batch_stop_work_units(
      api.BatchStopWorkUnitsRequest(parent=self.name)
    )


def status_of(unit: Any) -> UnitStatus:
  """Returns the status in a protobuf message of a work unit."""
  status = unit.current_work_unit_execution.status
  states = type(status).WorkUnitState
  replicas = status.detailed_status.jobset_status.replicated_jobs_status
  return UnitStatus(
    jobs=tuple(job.name for job in unit.executable.jobset.jobs),
    state=states.Name(status.state),
    failed=tuple(replica.name for replica in replicas if replica.failed),
  )
