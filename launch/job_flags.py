"""Flags that name a job: `--builder.gin.MODE=…` and `--env=builder.…`."""

from collections.abc import Sequence

from launch.errors import LaunchError
from launch.jobs import MODULES

_GIN_PREFIX = "gin."


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
