"""The jobs of one run, as commands."""

import dataclasses
from collections.abc import Mapping, Sequence

_GIN_PREFIX = "gin."


class LaunchError(ValueError):
  """A launch whose flags are wrong or incomplete."""


@dataclasses.dataclass(frozen=True)
class Job:
  """One process: `python ARGUMENTS`.

  Attributes:
    name: Name of the job: `trainer`, `builder` or `evaluator`.
    arguments: Arguments of the Python interpreter, from `-m` on.
    environment: Variables that are added to the inherited environment.
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
  """Separates `--gin.…`, `--builder.gin.…` and `--evaluator.gin.…`.

  Returns:
    The other arguments, and each job's `NAME=VALUE` bindings in order.

  Raises:
    LaunchError: A binding has no value, or names a job that does not exist.
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


def jobs_of_run(
  *,
  model_dir: str,
  corpus_dir: str,
  gin_files: Mapping[str, Sequence[str]],
  bindings: Mapping[str, Sequence[str]],
  environment: Mapping[str, Mapping[str, str]],
) -> list[Job]:
  """Returns the jobs that have gin files, of which one is the trainer.

  Args:
    model_dir: Value of MODEL_DIR in every job.
    corpus_dir: Value of CORPUS_DIR in every job.
    gin_files: Gin files of each job.
    bindings: `NAME=VALUE` bindings of each job, which override its files.
    environment: Environment variables of each job.

  Raises:
    LaunchError: The trainer has no gin file, or a job without gin files has
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
