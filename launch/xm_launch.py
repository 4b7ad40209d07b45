"""Starts the jobs of a run with XManager: the trainer, and what runs beside it.

    python -m launch.xm_launch --model_dir=runs/realm --corpus_dir=corpus \\
      --gin_file=gin/models/bert_base.gin \\
      --gin_file=gin/runs/pretrain.gin \\
      --builder_gin_file=gin/models/bert_base.gin \\
      --builder_gin_file=gin/runs/build_index.gin \\
      --gin.NUM_STEPS=10000 --builder.gin.KEEP_GENERATIONS=5

`--executor=local` starts them as processes of this machine, with no
container: when the trainer has ended the index builder is stopped, and the
evaluator, where one is wanted, follows. Ctrl-C stops all of them; the same
command then goes on where they stopped.

`--executor=cloud` packs the tracked files of this clone into an image and
submits it to an XManager on Cloud deployment, where each job has its own TPU
slice (`--tpu=v5litepod-8 --builder_tpu=v5litepod-8`; of one host, since
training over several is not there yet) and all paths are gs://. That
deployment's address and credentials come from the environment, as XManager
documents.
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
  """The jobs of one run as processes of this machine."""

  def __init__(self, experiment: xm.Experiment):
    self._experiment = experiment
    # XManager starts a binary through a shell, which would take a signal in
    # the job's stead and leave it running; `exec` puts the job in its place.
    self._python = executables.LocalBinary(
      "python", command="exec", args=xm.merge_args([sys.executable])
    )
    self._processes: dict[str, asyncio.subprocess.Process] = {}

  async def start(self, job: Job) -> None:
    """Starts a job; its output is shown with its name in front."""
    print(f"[{job.name}] $ python {shlex.join(job.arguments)}", flush=True)
    unit: Any = await self._experiment.add(
      xm.Job(
        self._python,
        xm_local.Local(),
        name=job.name,
        args=list(job.arguments),
        env_vars=dict(job.environment),
      )
    )
    # The processes are XManager's own affair, but its public `stop` is not
    # implemented for them, and a unit's exit code is nowhere else.
    [handle] = unit._local_execution_handles
    self._processes[job.name] = handle.process

  async def ended(self, name: str) -> int:
    """Waits for a job; minus the signal's number where one ended it."""
    code = await self._processes[name].wait()
    print(f"[{name}] ended with {code}", flush=True)
    return code

  async def stop(self, name: str) -> None:
    """Asks a job to end (SIGTERM: the trainer saves first) and waits."""
    if self._processes[name].returncode is None:
      self._processes[name].terminate()
    await self.ended(name)


async def run_locally(name: str, jobs: Sequence[Job]) -> NoReturn:
  """Runs the jobs as processes of this machine and waits for them.

  Raises:
    SystemExit: always, with 0, with the exit code of the first job that
      failed, or as a shell does with 128 more than the signal that ended it,
      or this.
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
    # By an exception, because XManager would otherwise wait for its units
    # again and raise for those that were stopped.
    raise SystemExit(128 - code if code < 0 else code)


def cloud_job_group(
  jobs: Sequence[Job],
  images: Mapping[str, xm.Executable],
  *,
  tpus: Mapping[str, str | None],
) -> xm.JobGroup:
  """The jobs as XManager on Cloud runs them, each on its TPU slice.

  Raises:
    LaunchError: a slice is missing or none.
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
  """The image that runs one job; its command is part of it.

  XManager on Cloud hands arguments over by name, so that a flag can be given
  only once, and gin files are given several times.
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
    LaunchError: a flag that the cloud needs is missing or wrong.
  """
  from xmanager import xm_cloud

  if given.container_registry is None:
    raise LaunchError("--executor=cloud needs --container_registry")
  for path in (given.model_dir, given.corpus_dir):
    if not path.startswith("gs://"):
      raise LaunchError(
        f"{path} is on this machine; the cloud's jobs share gs:// paths alone"
      )
  settings: dict[str, Any] = {}
  if given.queue is not None:
    constraints = xm_cloud.SchedulingConstraints(queue_name=given.queue)
    settings["scheduling_constraints"] = constraints
  # What protobuf generates has no types.
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
        settings=xm_cloud.WorkUnitSettings(**settings),
      )
      if beside:
        experiment.add(
          cloud_job_group(beside, images, tpus=given.tpus),
          settings=xm_cloud.WorkUnitSettings(
            work_unit_type=work_unit_proto.WorkUnit.AUXILIARY, **settings
          ),
        )
  print(f"submitted {', '.join(images)} as {experiment.resource_name}")


def main(argv: Sequence[str], *, bindings: Mapping[str, Sequence[str]]) -> None:
  """Launches what the flags and the bindings of each job say."""
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
  """The command; an error of the user's ends in a line and code 2."""

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
