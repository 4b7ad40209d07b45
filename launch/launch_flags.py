"""Flags of the launcher, which are defined when it runs, not on import."""

import functools
from collections.abc import Sequence

from absl import flags

MODULES = {
  "trainer": "realm_jax.train",
  "builder": "realm_jax.build_index",
  "evaluator": "realm_jax.evaluate",
}
EXECUTORS = ("local", "cloud", "gke")
_GIN_PREFIX = "gin."


class LaunchError(ValueError):
  """A launch whose flags are wrong or incomplete, or whose gin files are."""


def define(values: flags.FlagValues = flags.FLAGS) -> None:
  """Adds the launcher's flags to others."""
  text, texts, integer, boolean = (
    functools.partial(define, flag_values=values)
    for define in (
      flags.DEFINE_string,
      flags.DEFINE_multi_string,
      flags.DEFINE_integer,
      flags.DEFINE_bool,
    )
  )
  flags.DEFINE_enum(
    *("executor", "local", EXECUTORS),
    "Place where the jobs run: this machine, XManager on Cloud, or a GKE "
    "cluster, for which a manifest is printed.",
    flag_values=values,
  )
  for name, meaning in (
    ("name", "The experiment's title; by default MODEL_DIR's last part."),
    ("tpu", "The trainer's TPU slice: v5litepod-64, v5p:4x4x4."),
    ("builder_tpu", "The index builder's slice; by default the trainer's."),
    (
      "evaluator_tpu",
      "The evaluator's slice; by default one host of the trainer's kind.",
    ),
    (
      "service_account",
      "The cluster's service account that may read and write the bucket.",
    ),
    ("queue", "The cluster's queue for the jobs."),
    (
      "container_registry",
      "Where the images are pushed that --executor=cloud builds.",
    ),
    ("image", "The image that the jobs of --executor=gke run."),
  ):
    text(name, None, meaning)
  for name in ("model_dir", "corpus_dir"):
    text(name, None, f"{name.upper()} of every job.", required=True)
  for job in MODULES:
    optional = "" if job == "trainer" else "; without any, none runs"
    texts(
      *(flag_of(job, "gin_file"), []),
      f"The {job}'s gin files{optional}. "
      f"--{'' if job == 'trainer' else f'{job}.'}gin.NAME=VALUE binds more.",
    )
    integer(
      *(flag_of(job, "processes"), None),
      f"Processes of the {job} on this machine; 1 by default.",
      lower_bound=1,
    )
  texts(
    *("env", []),
    "NAME=VALUE in the environment of every job, or JOB.NAME=VALUE of one: "
    "--env=builder.JAX_PLATFORMS=cpu where the trainer owns the accelerator.",
  )
  boolean(
    *("evaluator_follow", False),
    "Evaluate each new checkpoint beside the trainer, instead of the last one "
    "after it. --evaluator.gin.FOLLOW_UNTIL_STEP=STEP also waits for the "
    "evaluation of the checkpoint STEP; otherwise the evaluator is stopped "
    "when the trainer has ended.",
  )
  boolean(
    *("dry_run", False),
    "Print each job's command, environment and devices, read its gin files, "
    "and start nothing.",
  )
  integer(
    *("simulated_devices", None),
    "CPU devices that are simulated in each process on this machine; by "
    "default, each process uses the devices that it finds.",
    lower_bound=1,
  )
  flags.DEFINE_float(
    *("grace_seconds", 300.0),
    "Seconds that a process on this machine has from SIGTERM, on which the "
    "trainer saves a checkpoint, to SIGKILL.",
    flag_values=values,
  )
  integer(
    *("max_restarts", 10),
    "Restarts after failures, before the jobs have failed. With --executor=gke "
    "those after a preemption do not count, and a user's error ends all jobs.",
    lower_bound=0,
  )


def flag_of(job: str, flag: str) -> str:
  """Returns the name of a job's flag: the trainer's have no prefix."""
  return flag if job == "trainer" else f"{job}_{flag}"


def split_bindings(
  argv: Sequence[str],
) -> tuple[list[str], dict[str, list[str]]]:
  """Separates `--gin.…`, `--builder.gin.…` and `--evaluator.gin.…`.

  Returns:
    The other arguments, and each job's `NAME=VALUE` bindings in order.

  Raises:
    LaunchError: A binding has no value, or names a job that does not exist.
  """
  others = []
  bindings: dict[str, list[str]] = {job: [] for job in MODULES}
  for argument in argv:
    job, dot, binding = argument.removeprefix("--").partition(f".{_GIN_PREFIX}")
    if argument.startswith(f"--{_GIN_PREFIX}"):
      job, binding = "trainer", argument.removeprefix(f"--{_GIN_PREFIX}")
    elif not argument.startswith("--") or not dot or "=" in job:
      others.append(argument)
      continue
    if job not in bindings:
      raise LaunchError(f"{argument}: the jobs are {', '.join(MODULES)}")
    if "=" not in binding:
      raise LaunchError(f"{argument} has no value; write {argument}=VALUE")
    bindings[job].append(binding)
  return others, bindings


def split_environment(
  assignments: Sequence[str],
) -> dict[str, dict[str, str]]:
  """Returns each job's variables, from `NAME=VALUE` and `JOB.NAME=VALUE`.

  Raises:
    LaunchError: An assignment has neither form.
  """
  environment: dict[str, dict[str, str]] = {job: {} for job in MODULES}
  for assignment in assignments:
    target, equals, value = assignment.partition("=")
    job, dot, name = target.rpartition(".")
    if not (equals and name) or (dot and job not in environment):
      raise LaunchError(
        f"--env={assignment}: write NAME=VALUE, or JOB.NAME=VALUE with JOB one "
        f"of {', '.join(MODULES)}"
      )
    for variables in [environment[job]] if dot else environment.values():
      variables[name] = value
  return environment
