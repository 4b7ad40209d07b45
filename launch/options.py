"""Flags of the launcher, which are defined when it runs, not on import."""

import dataclasses
import functools
from typing import Any

from absl import flags

from launch.jobs import MODULES

EXECUTORS = ("local", "cloud", "gke")
# The fields of `Options` with a value for each job, and the trainer's flag.
_OF_EACH_JOB = {
  "gin_files": "gin_file",
  "processes": "processes",
  "tpus": "tpu",
}


@dataclasses.dataclass(frozen=True)
class Options:
  """Values of the flags; those of a single job are in dicts by job.

  Flags that were not given are None, so that those which do not fit the
  executor can be refused.
  """

  executor: str
  name: str | None
  model_dir: str
  corpus_dir: str
  gin_files: dict[str, list[str]]
  env: list[str]
  evaluator_follow: bool
  dry_run: bool
  processes: dict[str, int | None]
  simulated_devices: int | None
  grace_seconds: float
  tpus: dict[str, str | None]
  max_restarts: int
  service_account: str | None
  queue: str | None
  container_registry: str | None
  image: str | None


class _Definitions:
  """absl's functions that define flags, for one set of them.

  Args:
    values: Flags that are added to.
  """

  def __init__(self, values: flags.FlagValues):
    self.string = functools.partial(flags.DEFINE_string, flag_values=values)
    self.strings = functools.partial(
      flags.DEFINE_multi_string, flag_values=values
    )
    self.integer = functools.partial(flags.DEFINE_integer, flag_values=values)
    self.float = functools.partial(flags.DEFINE_float, flag_values=values)
    self.bool = functools.partial(flags.DEFINE_bool, flag_values=values)
    self.enum = functools.partial(flags.DEFINE_enum, flag_values=values)


def define(values: flags.FlagValues = flags.FLAGS) -> None:
  """Adds the launcher's flags to others."""
  define = _Definitions(values)
  define.enum(
    "executor",
    "local",
    EXECUTORS,
    "Place where the jobs run: this machine, XManager on Cloud, or a GKE "
    "cluster, for which a manifest is printed.",
  )
  define.string(
    "name", None, "The experiment's title; by default MODEL_DIR's last part."
  )
  define.string("model_dir", None, "MODEL_DIR of every job.", required=True)
  define.string("corpus_dir", None, "CORPUS_DIR of every job.", required=True)
  define.strings(
    "env",
    [],
    "NAME=VALUE in the environment of every job, or JOB.NAME=VALUE of one: "
    "--env=builder.JAX_PLATFORMS=cpu where the trainer owns the accelerator.",
  )
  define.bool(
    "dry_run",
    False,
    "Print each job's command, environment and devices, read its gin files, "
    "and start nothing.",
  )
  _define_gin_flags(define)
  _define_local_flags(define)
  _define_cluster_flags(define)


def _define_gin_flags(define: _Definitions) -> None:
  define.strings(
    "gin_file", [], "The trainer's gin files. --gin.NAME=VALUE binds more."
  )
  define.strings(
    "builder_gin_file",
    [],
    "The index builder's gin files; without any, none runs. "
    "--builder.gin.NAME=VALUE binds more.",
  )
  define.strings(
    "evaluator_gin_file",
    [],
    "The evaluator's gin files; without any, none runs. "
    "--evaluator.gin.NAME=VALUE binds more.",
  )
  define.bool(
    "evaluator_follow",
    False,
    "Evaluate each new checkpoint beside the trainer, instead of the last one "
    "after it. --evaluator.gin.FOLLOW_UNTIL_STEP=STEP also waits for the "
    "evaluation of the checkpoint STEP; otherwise the evaluator is stopped "
    "when the trainer has ended.",
  )


def _define_local_flags(define: _Definitions) -> None:
  define.integer(
    "processes", None, "Processes of the trainer on this machine; 1 by default."
  )
  define.integer(
    "builder_processes", None, "Processes of the index builder on this machine."
  )
  define.integer(
    "evaluator_processes", None, "Processes of the evaluator on this machine."
  )
  define.integer(
    "simulated_devices",
    None,
    "CPU devices that are simulated in each process on this machine; by "
    "default, each process uses the devices that it finds.",
  )
  define.float(
    "grace_seconds",
    300.0,
    "Seconds that a process on this machine has from SIGTERM, on which the "
    "trainer saves a checkpoint, to SIGKILL.",
  )


def _define_cluster_flags(define: _Definitions) -> None:
  define.string(
    "tpu", None, "The trainer's TPU slice: v5litepod-64, v5p-128, v5p:4x4x4."
  )
  define.string(
    "builder_tpu", None, "The index builder's slice; by default the trainer's."
  )
  define.string(
    "evaluator_tpu",
    None,
    "The evaluator's slice; by default one host of the trainer's kind.",
  )
  define.integer(
    "max_restarts",
    10,
    "Restarts after failures, before the jobs have failed. With --executor=gke "
    "those after a preemption do not count, and a user's error ends all jobs.",
  )
  define.string(
    "service_account",
    None,
    "The cluster's service account that may read and write the bucket.",
  )
  define.string("queue", None, "The cluster's queue for the jobs.")
  define.string(
    "container_registry",
    None,
    "Where the images are pushed that --executor=cloud builds.",
  )
  define.string("image", None, "The image that the jobs of --executor=gke run.")


def read(given: flags.FlagValues = flags.FLAGS) -> Options:
  """Returns the values of the parsed flags."""
  values: dict[str, Any] = {
    field: {job: given[flag_of(job, flag)].value for job in MODULES}
    for field, flag in _OF_EACH_JOB.items()
  }
  for field in dataclasses.fields(Options):
    if field.name not in values:
      values[field.name] = given[field.name].value
  return Options(**values)


def flag_of(job: str, flag: str) -> str:
  """Returns the name of a job's flag: the trainer's have no prefix."""
  return flag if job == "trainer" else f"{job}_{flag}"
