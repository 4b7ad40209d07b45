"""Flags of the launcher, which are defined when it runs, not on import."""

import dataclasses

from absl import flags


@dataclasses.dataclass(frozen=True)
class Options:
  """Values of the flags; those of a single job are in dicts by job."""

  executor: str
  name: str
  model_dir: str
  corpus_dir: str
  gin_files: dict[str, list[str]]
  env: list[str]
  tpus: dict[str, str | None]
  container_registry: str | None
  base_image: str
  queue: str | None


def define() -> None:
  """Defines the flags."""
  flags.DEFINE_enum(
    "executor", "local", ["local", "cloud"], "Place where the jobs run."
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
    "The evaluator's gin files; without any, none runs after the trainer. "
    "--evaluator.gin.NAME=VALUE binds more.",
  )
  flags.DEFINE_multi_string(
    "env",
    [],
    "NAME=VALUE in the environment of every job, or JOB.NAME=VALUE of one: "
    "--env=builder.JAX_PLATFORMS=cpu where the trainer owns the accelerator.",
  )
  flags.DEFINE_string(
    "tpu", None, "The trainer's slice on the cloud: v5litepod-8, v5p:2x2x1."
  )
  flags.DEFINE_string(
    "builder_tpu", None, "The index builder's slice; by default the trainer's."
  )
  flags.DEFINE_string(
    "evaluator_tpu", None, "The evaluator's slice; by default the trainer's."
  )
  flags.DEFINE_string(
    "container_registry", None, "Where the cloud's images are pushed."
  )
  flags.DEFINE_string(
    "base_image", "python:3.11", "What the cloud's images start from."
  )
  flags.DEFINE_string("queue", None, "The cloud's queue for the jobs.")


def read() -> Options:
  """Returns the values of the parsed flags."""
  given = flags.FLAGS
  return Options(
    executor=given.executor,
    name=given.name or given.model_dir.rstrip("/").rpartition("/")[2],
    model_dir=given.model_dir,
    corpus_dir=given.corpus_dir,
    gin_files={
      "trainer": given.gin_file,
      "builder": given.builder_gin_file,
      "evaluator": given.evaluator_gin_file,
    },
    env=given.env,
    tpus={
      "trainer": given.tpu,
      "builder": given.builder_tpu or given.tpu,
      "evaluator": given.evaluator_tpu or given.tpu,
    },
    container_registry=given.container_registry,
    base_image=given.base_image,
    queue=given.queue,
  )
