"""The jobs of one run, as commands."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from launch.cluster.slices import Slice
from launch.errors import LaunchError


class Schedule(enum.Enum):
  """When a job runs."""

  RUN = "until the run is complete"
  BESIDE = "beside the trainer, until it has ended"
  BESIDE_TO_ITS_END = "beside the trainer, to its own end"
  AFTER = "after the trainer"


@dataclasses.dataclass(frozen=True)
class Gin:
  """What configures a job.

  Attributes:
    files: Gin files; later ones override earlier ones.
    bindings: `NAME=VALUE` bindings, which override all files.
  """

  files: tuple[str, ...] = ()
  bindings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Job:
  """One command, `python ARGUMENTS`, which several processes may run together.

  Attributes:
    name: Name of the job: `trainer`, `builder` or `evaluator`.
    arguments: Arguments of the Python interpreter, from `-m` on.
    schedule: When it runs.
    environment: Variables that are added to the inherited environment.
    gin: Gin files and bindings, which the arguments contain.
    processes: Number of processes; on a TPU slice, one for each host.
    tpu: TPU slice; None on this machine.
  """

  name: str
  arguments: tuple[str, ...]
  schedule: Schedule
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
  gin: Gin = Gin()
  processes: int = 1
  tpu: Slice | None = None


MODULES = {
  "trainer": "realm_jax.train",
  "builder": "realm_jax.build_index",
  "evaluator": "realm_jax.evaluate",
}
_LAST_STEP = "FOLLOW_UNTIL_STEP"


def jobs_of_run(
  *,
  model_dir: str,
  corpus_dir: str,
  gin_files: Mapping[str, Sequence[str]],
  bindings: Mapping[str, Sequence[str]],
  environment: Mapping[str, Mapping[str, str]],
  evaluator_follows: bool = False,
) -> list[Job]:
  """Returns the jobs that have gin files, the trainer first.

  Args:
    model_dir: Value of MODEL_DIR in every job.
    corpus_dir: Value of CORPUS_DIR in every job.
    gin_files: Gin files of each job.
    bindings: `NAME=VALUE` bindings of each job, which override its files.
    environment: Environment variables of each job.
    evaluator_follows: Whether the evaluator evaluates each new checkpoint
      beside the trainer. With a binding of FOLLOW_UNTIL_STEP it ends by itself,
      otherwise with the trainer.

  Raises:
    LaunchError: The trainer has no gin file, or a job without gin files has
      bindings.
  """
  if not gin_files["trainer"]:
    raise LaunchError(
      "nothing says what to train; pass --gin_file, for example "
      "--gin_file=gin/models/bert_base.gin --gin_file=gin/runs/pretrain.gin"
    )
  shared = (f"MODEL_DIR={model_dir!r}", f"CORPUS_DIR={corpus_dir!r}")
  schedules = {"trainer": Schedule.RUN, "builder": Schedule.BESIDE}
  schedules["evaluator"] = Schedule.AFTER
  flags: dict[str, list[str]] = {name: [] for name in MODULES}
  if evaluator_follows:
    flags["evaluator"] = ["--follow"]
    bound = {binding.partition("=")[0] for binding in bindings["evaluator"]}
    has_end = _LAST_STEP in {name.strip() for name in bound}
    schedules["evaluator"] = (
      Schedule.BESIDE_TO_ITS_END if has_end else Schedule.BESIDE
    )
  jobs = []
  for name, module in MODULES.items():
    if not gin_files[name]:
      if bindings[name]:
        raise LaunchError(
          f"--{name}.gin.{bindings[name][0]} is for a job that does not run; "
          f"pass --{name}_gin_file too"
        )
      continue
    gin = Gin(tuple(gin_files[name]), (*shared, *bindings[name]))
    arguments = (
      *("-m", module, *flags[name]),
      *(f"--gin_file={file}" for file in gin.files),
      *(f"--gin.{binding}" for binding in gin.bindings),
    )
    jobs.append(
      Job(name, arguments, schedules[name], dict(environment[name]), gin)
    )
  return jobs
