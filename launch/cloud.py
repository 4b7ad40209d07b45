"""A run submitted to XManager on Cloud, through XManager's public interface."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from xmanager import xm, xm_cloud

from realm_jax.launch.jobs import Job, Schedule

_PROJECT_DIR = Path(__file__).resolve().parents[1]


def submit(name: str, jobs: Sequence[Job], given: flags.FlagValues) -> None:
  """Builds the images and submits the jobs.

  A job that would run on after the trainer has its own work unit, so that the
  trainer's can complete without it.
  """
  run, beside = {}, {}
  with (
    tempfile.TemporaryDirectory() as directory,
    xm_cloud.create_experiment(name) as experiment,
  ):
    clone = _copy_of_tracked_files(Path(directory) / "realm_jax_clone")
    for job in jobs:
      (image,) = experiment.package([_image(job, clone, given)])
      unit = beside if job.schedule is Schedule.BESIDE else run
      unit[job.name] = _xm_job(job, image, given)
    # Without `args`, the client mistakes the jobs' environments for arguments
    # of their commands; without `settings`, it fails.
    required = {"args": {}, "settings": xm_cloud.WorkUnitSettings()}
    for unit in (run, *({name: job} for name, job in beside.items())):
      experiment.add(xm.JobGroup(**unit), **required)
  number = experiment.resource_name.rpartition("/")[2]
  names = ", ".join(job.name for job in jobs)
  print(
    f"submitted {names} as {experiment.resource_name}; `xmc stop {number}` "
    "stops them, as an index builder must be when the trainer has ended"
  )


def _copy_of_tracked_files(copy: Path) -> Path:
  """Copies the tracked files of the working tree."""
  listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=_PROJECT_DIR)
  for name in listed.decode().split("\0"):
    path = _PROJECT_DIR / name
    if name and (path.is_file() or path.is_symlink()):
      (copy / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(path, copy / name, follow_symlinks=False)
  return copy


def _image(job: Job, clone: Path, given: flags.FlagValues) -> xm.Packageable:
  """Returns the image of the Dockerfile, with the job's command in it.

  The command cannot be passed as arguments, because XManager on Cloud passes
  each flag only once, and there are several gin files.
  """
  dockerfile = clone / f"Dockerfile.{job.name}"
  common = (clone / "launch" / "Dockerfile").read_text()
  dockerfile.write_text(
    f"{common}\nENTRYPOINT {json.dumps(job.container_command)}\n"
  )
  return xm.dockerfile_container(
    xm_cloud.KubernetesJobExecutor.Spec(
      container_registry=given.container_registry,
      image_name=f"realm-jax-{job.name}",
    ),
    path=str(clone),
    dockerfile=str(dockerfile),
  )


def _xm_job(job: Job, image: xm.Executable, given: flags.FlagValues) -> xm.Job:
  """Returns a job on its TPU slice, with one process on each host.

  XManager infers the number of replicas from the topology for GPUs, but not for
  TPUs. When one process fails, all processes of the job end, so a restart takes
  one retry for each host of the slice.
  """
  assert job.tpu is not None
  tpu = {f"tpu_{job.tpu.generation}": job.tpu.topology}
  completed = xm_cloud.executor.JobDependencyState.COMPLETED
  trainer_ended = xm_cloud.executor.Dependency("trainer", completed)
  return xm.Job(
    image,
    xm_cloud.KubernetesJobExecutor(
      xm.JobRequirements(tpu, replicas=job.tpu.hosts),
      replica_retry_limit=given.max_restarts * job.tpu.hosts,
      dependency=trainer_ended if job.schedule is Schedule.AFTER else None,
      service_account=given.service_account,
    ),
    name=job.name,
    env_vars=dict(job.environment),
  )
