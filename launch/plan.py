"""The jobs that the flags describe, checked before any is started."""

import ast
import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence

from launch.cluster.slices import parse_slice
from launch.errors import LaunchError
from launch.job_flags import split_environment
from launch.jobs import Job, jobs_of_run
from launch.options import Options, flag_of

# Names that gin files give to what a job reads or writes outside of its image.
_PATHS = frozenset(
  {
    "CORPUS_DIR",
    "GENERATION",
    "GENERATIONS_DIR",
    "INITIAL_CHECKPOINT",
    "INITIAL_READER",
    "MODEL_DIR",
    "OUTPUT_DIR",
    "PRETRAINING_CORPUS_DIR",
    "PREVIOUS_GENERATION",
    "QUESTIONS",
    "TRAIN_QUESTIONS",
  }
)
# Questions may also be downloaded by TFDS.
_SHARED = ("gs://", "tfds:")
# Kubernetes appends the job and the number of a process to the name of a run,
# and admits 63 characters.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")


def name_of(given: Options) -> str:
  """Returns the name of the run: by default MODEL_DIR's last part.

  Raises:
    LaunchError: GKE does not admit a name that was given.
  """
  name = given.name or given.model_dir.rstrip("/").rpartition("/")[2]
  if given.executor != "gke":
    return name
  if given.name is None:
    name = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-")
  if not _NAME.fullmatch(name):
    raise LaunchError(
      f"the name {name!r} cannot be a JobSet's; pass --name with at most 40 "
      "lower-case letters, digits and hyphens, of which the first is a letter"
    )
  return name


def plan(given: Options, bindings: Mapping[str, Sequence[str]]) -> list[Job]:
  """Returns the jobs of a run, with their processes and devices.

  Args:
    given: Values of the flags.
    bindings: `NAME=VALUE` gin bindings of each job.

  Raises:
    LaunchError: A flag is missing or wrong, or does not fit the others.
  """
  jobs = jobs_of_run(
    model_dir=given.model_dir,
    corpus_dir=given.corpus_dir,
    gin_files=given.gin_files,
    bindings=bindings,
    environment=split_environment(given.env),
    evaluator_follows=given.evaluator_follow,
  )
  _require_jobs_of_flags(given, {job.name for job in jobs})
  if given.executor == "local":
    _require_no_slices(given)
    return [_on_this_machine(job, given) for job in jobs]
  _require_cluster_flags(given)
  jobs = [_on_slice(job, given) for job in jobs]
  for job in jobs:
    _require_shared_paths(job, given.executor)
  return jobs


def _require_jobs_of_flags(given: Options, running: set[str]) -> None:
  """Refuses flags of jobs that do not run."""
  flags = {
    f"--{flag_of(job, name)}": job
    for name, values in (("processes", given.processes), ("tpu", given.tpus))
    for job, value in values.items()
    if value is not None
  }
  if given.evaluator_follow:
    flags["--evaluator_follow"] = "evaluator"
  for assignment in given.env:
    job, dot, _ = assignment.partition("=")[0].rpartition(".")
    if dot:
      flags[f"--env={assignment}"] = job
  for flag, job in flags.items():
    if job not in running:
      raise LaunchError(
        f"{flag} is for a job that does not run; pass --{job}_gin_file too"
      )


def _require_no_slices(given: Options) -> None:
  for job, tpu in given.tpus.items():
    if tpu is not None:
      raise LaunchError(
        f"--{flag_of(job, 'tpu')}={tpu}: --executor=local uses the devices of "
        "this machine; leave the slice out, or pass --executor=gke or cloud"
      )


def _require_cluster_flags(given: Options) -> None:
  for job, count in given.processes.items():
    if count is not None:
      raise LaunchError(
        f"--{flag_of(job, 'processes')}={count} is for --executor=local; on a "
        "slice, each host runs one process"
      )
  if given.simulated_devices is not None:
    raise LaunchError("--simulated_devices is for --executor=local")
  if given.max_restarts < 0:
    raise LaunchError(f"--max_restarts={given.max_restarts}; want at least 0")
  needed = {
    "gke": ("image", given.image, "us-docker.pkg.dev/PROJECT/REPO/realm:1"),
    "cloud": (
      "container_registry",
      given.container_registry,
      "us-docker.pkg.dev/PROJECT/REPO",
    ),
  }
  flag, value, example = needed[given.executor]
  if value is None:
    raise LaunchError(
      f"--executor={given.executor} needs --{flag}, as in --{flag}={example}"
    )


def _on_this_machine(job: Job, given: Options) -> Job:
  count = given.processes[job.name]
  flag = flag_of(job.name, "processes")
  if count is not None and count < 1:
    raise LaunchError(f"--{flag}={count}; a job has at least 1 process")
  environment = dict(job.environment)
  devices = given.simulated_devices
  if devices is not None:
    if devices < 1:
      raise LaunchError(f"--simulated_devices={devices}; want at least 1")
    before = environment.get("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    simulate = f"--xla_force_host_platform_device_count={devices}"
    environment["XLA_FLAGS"] = f"{before} {simulate}".strip()
    environment["JAX_PLATFORMS"] = "cpu"
  return dataclasses.replace(job, processes=count or 1, environment=environment)


def _on_slice(job: Job, given: Options) -> Job:
  own, trainers = given.tpus[job.name], given.tpus["trainer"]
  if trainers is None:
    raise LaunchError(
      f"--executor={given.executor} needs --tpu, as in --tpu=v5litepod-64"
    )
  tpu = parse_slice(own or trainers)
  if own is None and job.name == "evaluator":
    tpu = tpu.one_host
  return dataclasses.replace(job, processes=tpu.hosts, tpu=tpu)


def _require_shared_paths(job: Job, executor: str) -> None:
  """Refuses paths that the hosts of a cluster cannot read."""
  for binding in job.gin.bindings:
    name, _, text = binding.partition("=")
    if name.strip() not in _PATHS:
      continue
    value = text.strip()
    if value.startswith(("%", "@")):
      continue
    # Other text needs no quotes.
    with contextlib.suppress(SyntaxError, ValueError):
      value = ast.literal_eval(value)
    if isinstance(value, str) and not value.startswith(_SHARED):
      raise LaunchError(
        f"{name.strip()}={value} of the {job.name} is on this machine; "
        f"--executor={executor} runs on other machines, which share gs:// "
        "paths only"
      )
