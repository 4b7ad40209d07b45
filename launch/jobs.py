"""The jobs of a run, from the launcher's flags, checked before they start."""

import dataclasses
import enum
import functools
import os
import pkgutil
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from realm_jax.errors import RealmError
from realm_jax.launch.slices import Slice, parse_slice, slices_of

_MODULES = {
  "trainer": "realm_jax.train",
  "builder": "realm_jax.build_index",
  "evaluator": "realm_jax.evaluate",
}
# Functions that the commands configure, and import late.
_FUNCTIONS = {
  "realm_jax.train": "realm_jax.training.config:TrainConfig",
  "realm_jax.evaluate": "realm_jax.evaluation.evaluate:evaluate",
  "realm_jax.evaluate --follow": "realm_jax.evaluation.evaluate:follow",
  "realm_jax.build_index": "realm_jax.snapshots.index_builder:build_index",
  "realm_jax.build_memory": "realm_jax.evaluation.word_memory:build_memory",
}
_BINDING = re.compile(r"--(?:(\w+)\.)?gin\.(.*)", re.DOTALL)
_VARIABLE = re.compile(rf"(?:({'|'.join(_MODULES)})\.)?(\w+)=(.*)", re.DOTALL)
# Timeout of the processes of a slice, whose hosts first pull the image.
_INITIALIZATION_SECONDS = 1800
_REPOSITORY = "us-docker.pkg.dev/PROJECT/REPO"
# Flags that an executor needs, with examples.
_NEEDED = {
  "local": {},
  "gke": {"tpu": "v5litepod-64", "image": f"{_REPOSITORY}/realm:1"},
  "cloud": {"tpu": "v5litepod-64", "container_registry": _REPOSITORY},
}


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
    schedule: When the job runs.
    environment: Variables that are added to the inherited environment.
    processes: Number of processes; on a TPU slice, one for each host.
    tpu: TPU slice; None on this machine.
  """

  name: str
  arguments: tuple[str, ...]
  schedule: Schedule
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  processes: int = 1
  tpu: Slice | None = None

  @property
  def container_command(self) -> list[str]:
    """The command in each container of a slice.

    It has no coordinator address: jax gets it from GKE's environment variables
    in the containers.
    """
    patience = f"--initialization_timeout_seconds={_INITIALIZATION_SECONDS}"
    return ["python", "-m", "realm_jax.launch.pod", *self.arguments, patience]

  def __str__(self) -> str:
    """Schedule, devices, environment and command, for `--dry_run`."""
    place, command = f"TPU {self.tpu}", self.container_command
    if self.tpu is None:
      place = f"{self.processes} process(es) on this machine"
      command = ["python", *self.arguments]
    variables = [f"{name}={value}" for name, value in self.environment.items()]
    return (
      f"{self.name}: {place}, {self.schedule.value}\n"
      f"  {shlex.join([*variables, *command])}"
    )


def define(values: flags.FlagValues = flags.FLAGS) -> None:
  """Adds the launcher's flags to others."""
  text = functools.partial(flags.DEFINE_string, flag_values=values)
  texts = functools.partial(flags.DEFINE_multi_string, flag_values=values)
  integer = functools.partial(flags.DEFINE_integer, flag_values=values)
  boolean = functools.partial(flags.DEFINE_bool, flag_values=values)
  flags.DEFINE_enum(
    *("executor", "local", ("local", "cloud", "gke")),
    "Where the jobs run: on this machine, with XManager on Cloud, or in a GKE "
    "cluster, for which a manifest is printed.",
    flag_values=values,
  )
  text("name", None, "Name of the run; by default MODEL_DIR's last part.")
  for name in ("model_dir", "corpus_dir"):
    text(name, None, f"{name.upper()} of every job.", required=True)
  for job in _MODULES:
    text(
      *(_flag_of(job, "tpu"), None),
      f"The {job}'s TPU slice, such as v5litepod-64 or v5p:4x4x4. By default, "
      "the builder's is the same as the trainer's, and the evaluator's is one "
      "host of that kind.",
    )
    texts(
      *(_flag_of(job, "gin_file"), []),
      f"The {job}'s gin files. Builder and evaluator only run if they have gin "
      "files. --gin.NAME=VALUE adds a binding for the trainer, and "
      "--JOB.gin.NAME=VALUE for another job.",
    )
    integer(
      *(_flag_of(job, "processes"), None),
      f"Number of processes of the {job} on this machine; 1 by default.",
      lower_bound=1,
    )
  integer(
    *("simulated_devices", None),
    "Number of simulated CPU devices in each process on this machine.",
    lower_bound=1,
  )
  texts(
    *("env", []),
    "Environment variable for all jobs (NAME=VALUE) or for one (JOB.NAME=VALUE)"
    ", such as --env=builder.JAX_PLATFORMS=cpu if the trainer uses the only "
    "accelerator.",
  )
  boolean(
    *("evaluator_follow", False),
    "Evaluate each new checkpoint during training, instead of the last one "
    "after training. The evaluator stops when the trainer has ended, or "
    "continues until --evaluator.gin.FOLLOW_UNTIL_STEP=STEP.",
  )
  boolean("dry_run", False, "Only print the jobs, and check their gin files.")
  text("image", None, "Container image of the jobs, for --executor=gke.")
  text("container_registry", None, "Registry of images, for --executor=cloud.")
  text("service_account", None, "Service account with access to the bucket.")
  integer(
    *("max_restarts", 10),
    "Number of restarts before a failure is final. On this machine, it applies "
    "to the trainer and the builder, and is counted anew after each checkpoint "
    "or index. Elsewhere, it applies to jobs whose pods have restarted them in "
    "vain. With --executor=gke, restarts after a preemption do not count, and "
    "a user's error ends all jobs.",
    lower_bound=0,
  )


def _flag_of(job: str, flag: str) -> str:
  """Returns the name of a job's flag; the trainer's flags have no prefix."""
  return flag if job == "trainer" else f"{job}_{flag}"


def _of_job(given: flags.FlagValues, job: str, flag: str) -> Any:
  return given[_flag_of(job, flag)].value


def split_bindings(
  argv: Sequence[str],
) -> tuple[list[str], dict[str, list[str]]]:
  """Separates `--gin.…`, `--builder.gin.…` and `--evaluator.gin.…`.

  Returns:
    The other arguments, and each job's `NAME=VALUE` bindings in order.

  Raises:
    RealmError: A binding has no value, or an unknown job.
  """
  others, bindings = [], {job: [] for job in _MODULES}
  for argument in argv:
    if (match := _BINDING.fullmatch(argument)) is None:
      others.append(argument)
      continue
    job, binding = match[1] or "trainer", match[2]
    if job not in bindings or "=" not in binding:
      raise RealmError(
        f"{argument}: write --gin.NAME=VALUE for the trainer, or "
        "--JOB.gin.NAME=VALUE with the JOB builder or evaluator"
      )
    bindings[job].append(binding)
  return others, bindings


def name_of(given: flags.FlagValues) -> str:
  """Returns the name of the run, by default MODEL_DIR's last part.

  A JobSet's name may have lower-case letters, digits and hyphens. It is limited
  to 40 characters, because Kubernetes appends the job and the number of a
  process, and allows 63.
  """
  name = given.name or given.model_dir.rstrip("/").rpartition("/")[2]
  if given.executor == "gke":
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-")
  return name


def plan(
  given: flags.FlagValues, bindings: Mapping[str, Sequence[str]]
) -> list[Job]:
  """Returns the jobs with gin files, the trainer first.

  Args:
    given: Values of the flags.
    bindings: `NAME=VALUE` gin bindings of each job.

  Raises:
    RealmError: A flag is missing or wrong, or does not fit the others.
  """
  if not given.gin_file:
    raise RealmError(
      "nothing says what to train; pass --gin_file, for example "
      "--gin_file=gin/models/bert_base.gin --gin_file=gin/runs/pretrain.gin"
    )
  executor = given.executor
  unfit = [_flag_of(job, "tpu") for job in _MODULES]
  if executor != "local":
    unfit = [_flag_of(job, "processes") for job in _MODULES]
    unfit.append("simulated_devices")
  for flag in unfit:
    if given[flag].value is not None:
      raise RealmError(
        f"--{flag} does not fit --executor={executor}: TPU slices are for gke "
        "and cloud, processes and simulated devices for this machine"
      )
  for flag, example in _NEEDED[executor].items():
    if given[flag].value is None:
      raise RealmError(
        f"--executor={executor} needs --{flag}, as in --{flag}={example}"
      )
  environment: dict[str, dict[str, str]] = {job: {} for job in _MODULES}
  simulated = f"JAX_NUM_CPU_DEVICES={given.simulated_devices}"
  cpu = ["JAX_PLATFORMS=cpu", simulated] if given.simulated_devices else []
  for assignment in [*given.env, *cpu]:
    if (match := _VARIABLE.fullmatch(assignment)) is None:
      raise RealmError(
        f"--env={assignment}: write NAME=VALUE, or JOB.NAME=VALUE with JOB one "
        f"of {', '.join(_MODULES)}"
      )
    for job in [match[1]] if match[1] else _MODULES:
      environment[job][match[2]] = match[3]
  jobs = []
  for name in _MODULES:
    if _of_job(given, name, "gin_file"):
      jobs.append(_job(name, given, bindings[name], environment[name]))
    elif (
      bindings[name]
      or (name == "evaluator" and given.evaluator_follow)
      or any(_of_job(given, name, flag) for flag in ("processes", "tpu"))
    ):
      raise RealmError(
        f"the {name} has settings, but does not run without gin files; also "
        f"pass --{name}_gin_file"
      )
  return jobs


def _job(
  name: str,
  given: flags.FlagValues,
  bindings: Sequence[str],
  environment: Mapping[str, str],
) -> Job:
  follows = name == "evaluator" and given.evaluator_follow
  bound = [binding.partition("=")[0].strip() for binding in bindings]
  schedule = Schedule.BESIDE
  if name == "trainer":
    schedule = Schedule.RUN
  elif name == "evaluator" and not follows:
    schedule = Schedule.AFTER
  elif "FOLLOW_UNTIL_STEP" in bound:
    schedule = Schedule.BESIDE_TO_ITS_END
  bindings = (
    f"MODEL_DIR={given.model_dir!r}",
    f"CORPUS_DIR={given.corpus_dir!r}",
    *bindings,
  )
  arguments = (
    *("-m", _MODULES[name], *(["--follow"] if follows else [])),
    *(f"--gin_file={file}" for file in _of_job(given, name, "gin_file")),
    *(f"--gin.{binding}" for binding in bindings),
  )
  if given.executor == "local":
    if name != "evaluator":
      arguments = (*arguments, f"--max_restarts={given.max_restarts}")
    processes = _of_job(given, name, "processes") or 1
    return Job(name, arguments, schedule, environment, processes)
  for binding in bindings:
    key, value = (part.strip(" '\"") for part in binding.split("=", 1))
    is_path = key in ("MODEL_DIR", "CORPUS_DIR") or os.path.exists(value)
    if is_path and "://" not in value:
      raise RealmError(
        f"{key}={value} is on this machine; --executor={given.executor} runs "
        "on other machines, which only share gs:// paths"
      )
  slice_name = _of_job(given, name, "tpu")
  tpu = parse_slice(slice_name or given.tpu)
  if slice_name is None and name == "evaluator":
    slices = slices_of(tpu.generation).values()
    tpu = next(s for s in slices if s.chips == tpu.chips_per_host)
  return Job(name, arguments, schedule, environment, tpu.hosts, tpu)


def function_of(module: str, flags: Sequence[str] = ()) -> Callable[..., Any]:
  """Returns the function that `python -m MODULE`, with flags, configures."""
  follows = " --follow" if "--follow" in flags else ""
  return pkgutil.resolve_name(_FUNCTIONS[module + follows])


def gin_error(job: Job) -> str | None:
  """Returns the error in a job's gin files or bindings, if any.

  They are read in the same way as by the job.
  """
  from realm_jax import configuration

  module, *others = job.arguments[1:]
  files, bindings = (
    [one.removeprefix(flag) for one in others if one.startswith(flag)]
    for flag in ("--gin_file=", "--gin.")
  )
  try:
    function = function_of(module, others)
    configuration.parsed(function, files, bindings)
    return None
  except configuration.ConfigurationError as error:
    said = str(error)
  if job.name != "trainer":
    # Replaces the command's flags by the launcher's.
    said = said.replace("--gin.", f"--{job.name}.gin.")
    said = said.replace("--gin_file", f"--{job.name}_gin_file")
  return f"{job.name}: {said}"
