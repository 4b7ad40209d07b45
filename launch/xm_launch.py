"""Starts the jobs of a run with XManager: trainer, builder and evaluator.

    python -m launch.xm_launch --model_dir=runs/realm --corpus_dir=corpus \\
      --gin_file=gin/models/bert_base.gin \\
      --gin_file=gin/runs/pretrain.gin \\
      --builder_gin_file=gin/models/bert_base.gin \\
      --builder_gin_file=gin/runs/build_index.gin \\
      --gin.NUM_STEPS=10000 --builder.gin.KEEP_GENERATIONS=5

`--executor=local` starts them as processes of this machine, without a
container. When the trainer has ended, the index builder is stopped, and the
evaluator, if it has gin files, runs. Ctrl-C stops all jobs, and the same
command resumes them.

`--executor=cloud` packs the tracked files of this clone into an image and
submits it to an XManager on Cloud deployment. There each job has its own TPU
slice (`--tpu=v5litepod-8 --builder_tpu=v5litepod-8`), which must be of one
host, since training on several hosts is not implemented yet. All paths must be
gs://. The deployment's address and credentials come from the environment, as
XManager documents.
"""

import asyncio
import functools
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, logging
from xmanager import xm, xm_local
from xmanager.xm_local import executables

from launch import options
from launch.image import copy_clone, docker_instructions
from launch.jobs import (
  Job,
  LaunchError,
  jobs_of_run,
  split_bindings,
  split_environment,
)
from launch.supervision import supervise
from launch.tpu import parse_tpu


class LocalProcesses:
  """Jobs of one run as processes of this machine."""

  def __init__(self, experiment: xm.Experiment):
    self._experiment = experiment
    # XManager starts a binary through a shell. A signal would end the shell
    # and leave the job running, so `exec` replaces the shell by the job.
    self._python = executables.LocalBinary(
      "python", command="exec", args=xm.merge_args([sys.executable])
    )
    self._processes: dict[str, asyncio.subprocess.Process] = {}

  async def start(self, job: Job) -> None:
    """Starts a job, whose output is shown with its name before each line."""
    print(f"[{job.name}] $ python {shlex.join(job.arguments)}", flush=True)
    unit = await self._experiment.add(
      xm.Job(
        self._python,
        xm_local.Local(),
        name=job.name,
        args=list(job.arguments),
        env_vars=dict(job.environment),
      )
    )
    self._processes[job.name] = _process_of(unit)

  async def ended(self, name: str) -> int:
    """Waits for a job, and returns its exit code.

    If a signal ended the job, this is minus the signal's number.
    """
    code = await self._processes[name].wait()
    print(f"[{name}] ended with {code}", flush=True)
    return code

  async def stop(self, name: str) -> None:
    """Sends SIGTERM, on which the trainer saves a checkpoint, and waits."""
    if self._processes[name].returncode is None:
      self._processes[name].terminate()
    await self.ended(name)


def _process_of(unit: xm.ExperimentUnit) -> asyncio.subprocess.Process:
  """Returns the process of a local unit with one job.

  XManager keeps processes in a private attribute. Its public `stop` is not
  implemented for them, and a unit's exit code is nowhere else.
  """
  [handle] = unit._local_execution_handles  # pyrefly: ignore
  return handle.process


async def run_locally(name: str, jobs: Sequence[Job]) -> NoReturn:
  """Runs the jobs as processes of this machine and waits for them.

  Raises:
    SystemExit: Always. The code is 0, or that of the first job that failed; if
      a signal ended it or this process, 128 plus the signal, as in shells.
  """
  caught: list[int] = []
  async with xm_local.create_experiment(name) as experiment:
    supervision = asyncio.create_task(
      supervise(LocalProcesses(experiment), jobs)
    )

    def stop(number: int) -> None:
      print(f"{signal.Signals(number).name}: stopping the jobs", flush=True)
      caught.append(number)
      supervision.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
      asyncio.get_running_loop().add_signal_handler(
        number, functools.partial(stop, number)
      )
    try:
      code = await supervision
    except asyncio.CancelledError:
      if not caught:
        raise
      code = -caught[0]
    # Without an exception, XManager would wait for its units again and raise
    # for those that were stopped.
    raise SystemExit(128 - code if code < 0 else code)


def cloud_job_group(
  jobs: Sequence[Job],
  images: Mapping[str, xm.Executable],
  *,
  tpus: Mapping[str, str | None],
) -> xm.JobGroup:
  """Returns the jobs for XManager on Cloud, each on its TPU slice.

  Raises:
    LaunchError: A slice is missing, or its name is wrong.
  """
  from xmanager import xm_cloud

  group = {}
  for job in jobs:
    tpu = tpus[job.name]
    if tpu is None:
      raise LaunchError("--executor=cloud needs --tpu, as in --tpu=v5litepod-8")
    generation, topology = parse_tpu(tpu)
    dependency = None
    if job.name == "evaluator":
      dependency = xm_cloud.executor.Dependency(
        "trainer", xm_cloud.executor.JobDependencyState.COMPLETED
      )
    group[job.name] = xm.Job(
      images[job.name],
      xm_cloud.KubernetesJobExecutor(
        xm.JobRequirements({f"tpu_{generation}": topology}),
        dependency=dependency,
      ),
      name=job.name,
      env_vars=dict(job.environment),
    )
  return xm.JobGroup(**group)


def image_of(
  job: Job, clone: Path, *, registry: str, base_image: str
) -> xm.Packageable:
  """Returns the image that runs one job.

  The image contains the job's command: XManager on Cloud passes arguments by
  name, so that a flag could be given only once, and there are several gin
  files.
  """
  from xmanager import xm_cloud

  return xm.python_container(
    xm_cloud.KubernetesJobExecutor.Spec(
      container_registry=registry, image_name=f"realm-jax-{job.name}"
    ),
    xm.CommandList([shlex.join(["python", *job.arguments])]),
    path=str(clone),
    base_image=base_image,
    docker_instructions=docker_instructions(clone),
  )


def submit_to_cloud(jobs: Sequence[Job], given: options.Options) -> None:
  """Builds the images, submits the jobs and returns without waiting.

  Raises:
    LaunchError: A flag that the cloud needs is missing or wrong.
  """
  from xmanager import xm_cloud

  if given.container_registry is None:
    raise LaunchError("--executor=cloud needs --container_registry")
  for path in (given.model_dir, given.corpus_dir):
    if not path.startswith("gs://"):
      raise LaunchError(
        f"{path} is on this machine; jobs on the cloud share gs:// paths only"
      )
  settings = functools.partial(xm_cloud.WorkUnitSettings)
  if given.queue is not None:
    constraints = xm_cloud.SchedulingConstraints(queue_name=given.queue)
    settings = functools.partial(settings, scheduling_constraints=constraints)
  # Modules that protobuf generates have no types.
  work_unit_proto: Any = xm_cloud.experiment.work_unit_pb2
  with tempfile.TemporaryDirectory() as directory:
    clone = copy_clone(Path(directory))
    with xm_cloud.create_experiment(given.name) as experiment:
      packaged = experiment.package(
        [
          image_of(
            job,
            clone,
            registry=given.container_registry,
            base_image=given.base_image,
          )
          for job in jobs
        ]
      )
      images = {
        job.name: image for job, image in zip(jobs, packaged, strict=True)
      }
      # The builder follows checkpoints until it is stopped, so it must not
      # keep the work unit of the trainer from being complete.
      beside = [job for job in jobs if job.name == "builder"]
      others = [job for job in jobs if job.name != "builder"]
      experiment.add(
        cloud_job_group(others, images, tpus=given.tpus),
        settings=settings(),
      )
      if beside:
        experiment.add(
          cloud_job_group(beside, images, tpus=given.tpus),
          settings=settings(work_unit_type=work_unit_proto.WorkUnit.AUXILIARY),
        )
  print(f"submitted {', '.join(images)} as {experiment.resource_name}")


def main(argv: Sequence[str], *, bindings: Mapping[str, Sequence[str]]) -> None:
  """Launches the jobs that the flags and bindings describe."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected: {shlex.join(argv[1:])}")
  logging.set_verbosity(logging.WARNING)
  given = options.read()
  jobs = jobs_of_run(
    model_dir=given.model_dir,
    corpus_dir=given.corpus_dir,
    gin_files=given.gin_files,
    bindings=bindings,
    environment=split_environment(given.env),
  )
  if given.executor == "local":
    asyncio.run(run_locally(given.name, jobs))
  submit_to_cloud(jobs, given)


def run() -> None:
  """Runs the command. An error of the user is printed and exits with 2."""

  def guarded(argv: Sequence[str]) -> int:
    try:
      main(argv, bindings=bindings)
    except LaunchError as error:
      print(f"xm_launch: {error}", file=sys.stderr)
      return 2
    return 0

  options.define()
  try:
    arguments, bindings = split_bindings(sys.argv)
  except LaunchError as error:
    print(f"xm_launch: {error}", file=sys.stderr)
    sys.exit(2)
  app.run(guarded, argv=arguments)


if __name__ == "__main__":
  run()
