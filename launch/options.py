"""Flags of the launcher, which are defined when it runs, not on import."""

import dataclasses
from typing import Any

from absl import flags

from launch.jobs import MODULES

EXECUTORS = ("local", "cloud", "gke")


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
  base_image: str
  watch: bool
  image: str | None


def define() -> None:
  """Defines the flags."""
  flags.DEFINE_enum(
    "executor",
    "local",
    EXECUTORS,
    "Place where the jobs run: this machine, XManager on Cloud, or a GKE "
    "cluster, for which a manifest is printed.",
  )
  flags.DEFINE_string(
    "name", None, "The experiment's title; by default MODEL_DIR's last part."
  )
  flags.DEFINE_string(
    "model_dir", None, "MODEL_DIR of every job.", required=True
  )
  flags.DEFINE_string(
    "corpus_dir", None, "CORPUS_DIR of every job.", required=True
  )
  flags.DEFINE_multi_string(
    "env",
    [],
    "NAME=VALUE in the environment of every job, or JOB.NAME=VALUE of one: "
    "--env=builder.JAX_PLATFORMS=cpu where the trainer owns the accelerator.",
  )
  flags.DEFINE_bool(
    "dry_run",
    False,
    "Print each job's command, environment and devices, read its gin files, "
    "and start nothing.",
  )
  _define_gin_flags()
  _define_local_flags()
  _define_cluster_flags()


def _define_gin_flags() -> None:
  flags.DEFINE_multi_string(
    "gin_file", [], "The trainer's gin files. --gin.NAME=VALUE binds more."
  )
  flags.DEFINE_multi_string(
    "builder_gin_file",
    [],
    "The index builder's gin files; without any, none runs. "
    "--builder.gin.NAME=VALUE binds more.",
  )
  flags.DEFINE_multi_string(
    "evaluator_gin_file",
    [],
    "The evaluator's gin files; without any, none runs. "
    "--evaluator.gin.NAME=VALUE binds more.",
  )
  flags.DEFINE_bool(
    "evaluator_follow",
    False,
    "Evaluate each new checkpoint beside the trainer, instead of the last one "
    "after it. --evaluator.gin.FOLLOW_UNTIL_STEP=STEP also waits for the "
    "evaluation of the checkpoint STEP; otherwise the evaluator is stopped "
    "when the trainer has ended.",
  )


def _define_local_flags() -> None:
  flags.DEFINE_integer(
    "processes", None, "Processes of the trainer on this machine; 1 by default."
  )
  flags.DEFINE_integer(
    "builder_processes", None, "Processes of the index builder on this machine."
  )
  flags.DEFINE_integer(
    "evaluator_processes", None, "Processes of the evaluator on this machine."
  )
  flags.DEFINE_integer(
    "simulated_devices",
    None,
    "CPU devices that are simulated in each process on this machine; by "
    "default, each process uses the devices that it finds.",
  )
  flags.DEFINE_float(
    "grace_seconds",
    300.0,
    "Seconds that a process on this machine has from SIGTERM, on which the "
    "trainer saves a checkpoint, to SIGKILL.",
  )


def _define_cluster_flags() -> None:
  flags.DEFINE_string(
    "tpu", None, "The trainer's TPU slice: v5litepod-64, v5p-128, v5p:4x4x4."
  )
  flags.DEFINE_string(
    "builder_tpu", None, "The index builder's slice; by default the trainer's."
  )
  flags.DEFINE_string(
    "evaluator_tpu", None, "The evaluator's slice; by default the trainer's."
  )
  flags.DEFINE_integer(
    "max_restarts",
    10,
    "Restarts after a failure or a preemption, before the jobs have failed.",
  )
  flags.DEFINE_string(
    "service_account",
    None,
    "The cluster's service account that may read and write the bucket.",
  )
  flags.DEFINE_string("queue", None, "The cluster's queue for the jobs.")
  flags.DEFINE_string(
    "container_registry",
    None,
    "Where the images are pushed that --executor=cloud builds.",
  )
  flags.DEFINE_string(
    "base_image",
    "python:3.11",
    "What the images start from that --executor=cloud builds.",
  )
  flags.DEFINE_bool(
    "watch",
    True,
    "Wait for the jobs of --executor=cloud, report failures, and stop the "
    "index builder when the trainer has ended.",
  )
  flags.DEFINE_string(
    "image", None, "The image that the jobs of --executor=gke run."
  )


def read() -> Options:
  """Returns the values of the parsed flags."""
  given = flags.FLAGS
  return Options(
    executor=given.executor,
    name=given.name,
    model_dir=given.model_dir,
    corpus_dir=given.corpus_dir,
    gin_files=_by_job("gin_file"),
    env=given.env,
    evaluator_follow=given.evaluator_follow,
    dry_run=given.dry_run,
    processes=_by_job("processes"),
    simulated_devices=given.simulated_devices,
    grace_seconds=given.grace_seconds,
    tpus=_by_job("tpu"),
    max_restarts=given.max_restarts,
    service_account=given.service_account,
    queue=given.queue,
    container_registry=given.container_registry,
    base_image=given.base_image,
    watch=given.watch,
    image=given.image,
  )


def _by_job(flag: str) -> dict[str, Any]:
  """Returns the values of a flag, of which each job has one of its own."""
  return {job: flags.FLAGS[flag_of(job, flag)].value for job in MODULES}


def flag_of(job: str, flag: str) -> str:
  """Returns the name of a job's flag: the trainer's have no prefix."""
  return flag if job == "trainer" else f"{job}_{flag}"
