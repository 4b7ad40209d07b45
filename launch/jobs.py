"""The jobs of one run, as the commands that one would type for them."""

import dataclasses
from collections.abc import Mapping, Sequence

_GIN_PREFIX = "gin."


class LaunchError(ValueError):
  """A launch that cannot mean what its author wanted."""


@dataclasses.dataclass(frozen=True)
class Job:
  """One process: `python ARGUMENTS`.

  Attributes:
    name: `trainer`, `builder` or `evaluator`.
    arguments: of the interpreter, from `-m` on.
    environment: variables on top of what the process inherits.
  """

  name: str
  arguments: tuple[str, ...]
  environment: Mapping[str, str]


MODULES = {
  "trainer": "realm_jax.train",
  "builder": "realm_jax.build_index",
  "evaluator": "realm_jax.evaluate",
}


def split_bindings(
  argv: Sequence[str],
) -> tuple[list[str], dict[str, list[str]]]:
  """Takes `--gin.…`, `--builder.gin.…` and `--evaluator.gin.…` out.

  Returns:
    The other arguments, and each job's `NAME=VALUE` bindings in order.

  Raises:
    LaunchError: a binding has no value, or is of a job that does not exist.
  """
  others = []
  bindings: dict[str, list[str]] = {job: [] for job in MODULES}
  for argument in argv:
    job, dot, rest = argument.removeprefix("--").partition(f".{_GIN_PREFIX}")
    if argument.startswith(f"--{_GIN_PREFIX}"):
      job, binding = "trainer", argument.removeprefix(f"--{_GIN_PREFIX}")
    elif argument.startswith("--") and dot and "=" not in job:
      binding = rest
    else:
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
  """Each job's variables, from `NAME=VALUE` and `JOB.NAME=VALUE`.

  Raises:
    LaunchError: an assignment is neither.
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


def jobs_of_run(
  *,
  model_dir: str,
  corpus_dir: str,
  gin_files: Mapping[str, Sequence[str]],
  bindings: Mapping[str, Sequence[str]],
  environment: Mapping[str, Mapping[str, str]],
) -> list[Job]:
  """The jobs that have gin files: the trainer, and what runs beside it.

  Args:
    model_dir: bound as MODEL_DIR in every job.
    corpus_dir: bound as CORPUS_DIR in every job.
    gin_files: by job.
    bindings: `NAME=VALUE` by job, over those of the files.
    environment: by job.

  Raises:
    LaunchError: the trainer has no gin file, or a job that has none has
      bindings.
  """
  if not gin_files["trainer"]:
    raise LaunchError(
      "nothing says what to train; pass --gin_file, for example "
      "--gin_file=gin/models/bert_base.gin --gin_file=gin/runs/pretrain.gin"
    )
  shared = [f"MODEL_DIR={model_dir!r}", f"CORPUS_DIR={corpus_dir!r}"]
  jobs = []
  for name, module in MODULES.items():
    if not gin_files[name]:
      if bindings[name]:
        raise LaunchError(
          f"--{name}.gin.{bindings[name][0]} is for a job that does not run; "
          f"pass --{name}_gin_file too"
        )
      continue
    arguments = ["-m", module]
    arguments += [f"--gin_file={file}" for file in gin_files[name]]
    arguments += [f"--gin.{given}" for given in [*shared, *bindings[name]]]
    jobs.append(Job(name, tuple(arguments), dict(environment[name])))
  return jobs
