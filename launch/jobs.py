"""The jobs of a run, from the flags, checked before any is started."""

import ast
import contextlib
import dataclasses
import enum
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from launch.launch_flags import (
  MODULES,
  LaunchError,
  flag_of,
  split_environment,
)
from launch.slices import Slice, parse_slice

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
    "QUESTIONS",
    "TRAIN_QUESTIONS",
  }
)
# Questions may also be downloaded by TFDS.
_SHARED = ("gs://", "tfds:")
# Kubernetes appends the job and the number of a process to the name of a run,
# and admits 63 characters.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_LAST_STEP = "FOLLOW_UNTIL_STEP"
# The processes of a slice start when each host has pulled the image.
_INITIALIZATION_SECONDS = 1800


class Schedule(enum.Enum):
  """When a job runs."""

  RUN = "until the run is complete"
  BESIDE = "beside the trainer, until it has ended"
  BESIDE_TO_ITS_END = "beside the trainer, to its own end"
  AFTER = "after the trainer"


@dataclasses.dataclass(frozen=True)
class Job:
  """One command, `python ARGUMENTS`, which several processes may run together.

  Attributes:
    name: Name of the job: `trainer`, `builder` or `evaluator`.
    arguments: Arguments of the Python interpreter, from `-m` on.
    schedule: When it runs.
    environment: Variables that are added to the inherited environment.
    gin_files: Gin files, which the arguments contain.
    gin_bindings: `NAME=VALUE` bindings, which the arguments contain, too.
    processes: Number of processes; on a TPU slice, one for each host.
    tpu: TPU slice; None on this machine.
  """

  name: str
  arguments: tuple[str, ...]
  schedule: Schedule
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  gin_files: tuple[str, ...] = ()
  gin_bindings: tuple[str, ...] = ()
  processes: int = 1
  tpu: Slice | None = None

  @property
  def container_command(self) -> list[str]:
    """The command in each container of a slice.

    Nothing says where the processes meet: jax finds that in what GKE tells the
    containers of a slice.
    """
    patience = f"--initialization_timeout_seconds={_INITIALIZATION_SECONDS}"
    return ["python", "-m", "launch.pod", *self.arguments, patience]

  def process_arguments(self, coordinator_address: str) -> list[list[str]]:
    """Returns the arguments of each process on this machine.

    Several processes are told where process 0 waits for the others
    (`realm_jax/configuration/command_line.py`).
    """
    meeting = [
      f"--coordinator_address={coordinator_address}",
      f"--num_processes={self.processes}",
    ]
    return [
      [*self.arguments]
      if self.processes == 1
      else [*self.arguments, *meeting, f"--process_id={index}"]
      for index in range(self.processes)
    ]

  def __str__(self) -> str:
    """Schedule, devices, environment and commands, for `--dry_run`."""
    lines = [self.name, f"  runs {self.schedule.value}"]
    if self.tpu is None:
      processes = "process" if self.processes == 1 else "processes"
      lines.append(f"  {self.processes} {processes} on this machine")
      commands = [
        ["python", *arguments]
        for arguments in self.process_arguments("localhost:PORT")
      ]
    else:
      lines += [
        f"  TPU {self.tpu}",
        f"  {self.tpu.hosts} × {self.tpu.machine_type} of "
        f"{self.tpu.generation.accelerator}, each with google.com/tpu: "
        f"{self.tpu.chips_per_host}",
      ]
      commands = [self.container_command]
    lines += [
      f"  environment: {name}={shlex.quote(value)}"
      for name, value in sorted(self.environment.items())
    ]
    return "\n".join(lines + [f"  $ {shlex.join(c)}" for c in commands])


def name_of(given: flags.FlagValues) -> str:
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


def plan(
  given: flags.FlagValues, bindings: Mapping[str, Sequence[str]]
) -> list[Job]:
  """Returns the jobs that have gin files, the trainer first.

  Args:
    given: Values of the flags.
    bindings: `NAME=VALUE` gin bindings of each job.

  Raises:
    LaunchError: A flag is missing or wrong, or does not fit the others.
  """
  if not given.gin_file:
    raise LaunchError(
      "nothing says what to train; pass --gin_file, for example "
      "--gin_file=gin/models/bert_base.gin --gin_file=gin/runs/pretrain.gin"
    )
  environment = split_environment(given.env)
  jobs = [
    _job(name, given, bindings[name], environment[name])
    for name in MODULES
    if _of_job(given, name, "gin_file")
  ]
  _require_running(given, bindings, {job.name for job in jobs})
  if given.executor == "local":
    return [_on_this_machine(job, given) for job in jobs]
  _require_cluster_flags(given)
  jobs = [_on_slice(job, given) for job in jobs]
  for job in jobs:
    _require_shared_paths(job, given.executor)
  return jobs


def _of_job(given: flags.FlagValues, job: str, flag: str) -> Any:
  return given[flag_of(job, flag)].value


def _job(
  name: str,
  given: flags.FlagValues,
  bindings: Sequence[str],
  environment: Mapping[str, str],
) -> Job:
  follows = name == "evaluator" and given.evaluator_follow
  if name == "trainer":
    schedule = Schedule.RUN
  elif name == "evaluator" and not follows:
    schedule = Schedule.AFTER
  elif _LAST_STEP in {b.partition("=")[0].strip() for b in bindings}:
    schedule = Schedule.BESIDE_TO_ITS_END
  else:
    schedule = Schedule.BESIDE
  files = _of_job(given, name, "gin_file")
  directories = (
    f"MODEL_DIR={given.model_dir!r}",
    f"CORPUS_DIR={given.corpus_dir!r}",
  )
  bindings = (*directories, *bindings)
  arguments = (
    *("-m", MODULES[name], *(["--follow"] if follows else [])),
    *(f"--gin_file={file}" for file in files),
    *(f"--gin.{binding}" for binding in bindings),
  )
  return Job(name, arguments, schedule, environment, tuple(files), bindings)


def _require_running(
  given: flags.FlagValues,
  bindings: Mapping[str, Sequence[str]],
  running: set[str],
) -> None:
  """Refuses flags of jobs that do not run."""
  for job in MODULES.keys() - running:
    found = [
      f"--{flag_of(job, flag)}"
      for flag in ("processes", "tpu")
      if _of_job(given, job, flag) is not None
    ]
    found += [f"--{job}.gin.{binding}" for binding in bindings[job]]
    found += [f"--env={one}" for one in given.env if one.startswith(f"{job}.")]
    if job == "evaluator" and given.evaluator_follow:
      found.append("--evaluator_follow")
    if found:
      raise LaunchError(
        f"{found[0]} is for a job that does not run; pass --{job}_gin_file too"
      )


def _require_cluster_flags(given: flags.FlagValues) -> None:
  for flag in (
    "simulated_devices",
    *(flag_of(j, "processes") for j in MODULES),
  ):
    if given[flag].value is not None:
      raise LaunchError(
        f"--{flag} is for --executor=local; on a slice, each host runs one "
        "process with all of its devices"
      )
  repository = "us-docker.pkg.dev/PROJECT/REPO"
  needed = {"tpu": "v5litepod-64"}
  if given.executor == "gke":
    needed["image"] = f"{repository}/realm:1"
  else:
    needed["container_registry"] = repository
  for flag, example in needed.items():
    if given[flag].value is None:
      raise LaunchError(
        f"--executor={given.executor} needs --{flag}, as in --{flag}={example}"
      )


def _on_this_machine(job: Job, given: flags.FlagValues) -> Job:
  tpu = _of_job(given, job.name, "tpu")
  if tpu is not None:
    raise LaunchError(
      f"--{flag_of(job.name, 'tpu')}={tpu}: --executor=local uses the devices "
      "of this machine; leave the slice out, or pass --executor=gke or cloud"
    )
  count = _of_job(given, job.name, "processes")
  devices = given.simulated_devices
  environment = dict(job.environment)
  if devices is not None:
    before = environment.get("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    simulate = f"--xla_force_host_platform_device_count={devices}"
    environment["XLA_FLAGS"] = f"{before} {simulate}".strip()
    environment["JAX_PLATFORMS"] = "cpu"
  return dataclasses.replace(job, processes=count or 1, environment=environment)


def _on_slice(job: Job, given: flags.FlagValues) -> Job:
  own = _of_job(given, job.name, "tpu")
  tpu = parse_slice(own or given.tpu)
  if own is None and job.name == "evaluator":
    tpu = tpu.one_host
  return dataclasses.replace(job, processes=tpu.hosts, tpu=tpu)


def _require_shared_paths(job: Job, executor: str) -> None:
  """Refuses paths that the hosts of a cluster cannot read."""
  for binding in job.gin_bindings:
    name, _, text = binding.partition("=")
    value = text.strip()
    if name.strip() not in _PATHS or value.startswith(("%", "@")):
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


def require_readable_gin(jobs: Sequence[Job]) -> None:
  """Reads the gin files and bindings of each job, as the job will.

  Raises:
    LaunchError: A file is missing or wrong, a binding names nothing or has a
      value of a wrong type, or a required value is not given.
  """
  found = []
  for job in jobs:
    error = gin_error(job)
    if error is not None and job.name != "trainer":
      # The launcher's names of the flags that the job's command would have.
      error = error.replace("--gin.", f"--{job.name}.gin.")
      error = error.replace("--gin_file", f"--{job.name}_gin_file")
    if error is not None:
      found.append(f"{job.name}: {error}")
  if found:
    raise LaunchError("\n".join(found))


def gin_error(job: Job) -> str | None:
  """Returns what is wrong with a job's gin files or bindings, if anything."""
  from realm_jax import configuration
  from realm_jax.pipeline import function_of

  bindings = [binding.replace("=", " = ", 1) for binding in job.gin_bindings]
  try:
    module, *others = job.arguments[1:]
    function = function_of(module.rpartition(".")[2], others)
    with configuration.parsed(function, job.gin_files, bindings):
      return None
  except configuration.ConfigurationError as error:
    return str(error)
  # What a file imports, and gin's own reader, may raise anything.
  except Exception as error:
    return f"the gin configuration is wrong: {type(error).__name__}: {error}"
