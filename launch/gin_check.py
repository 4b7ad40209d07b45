"""Reads the gin files of the jobs, as the jobs will, before any is started."""

import concurrent.futures
import multiprocessing
from collections.abc import Sequence

from launch.errors import LaunchError
from launch.jobs import Job


def require_readable(jobs: Sequence[Job]) -> None:
  """Reads the gin files and bindings of each job.

  A process of its own reads them, because this imports what they configure,
  which the launcher does not need.

  Raises:
    LaunchError: A file is missing or wrong, a binding names nothing or has a
      value of a wrong type, or a required value is not given.
  """
  spawn = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as reader:
    errors = reader.map(error_of, jobs)
    found = [
      f"{job.name}: {_for_job(job.name, error)}"
      for job, error in zip(jobs, errors, strict=True)
      if error is not None
    ]
  if found:
    raise LaunchError("\n".join(found))


def error_of(job: Job) -> str | None:
  """Returns what is wrong with a job's gin files or bindings, if anything."""
  from realm_jax import configuration
  from realm_jax.stage_commands import function_of

  bindings = [binding.replace("=", " = ", 1) for binding in job.gin.bindings]
  try:
    module, *flags = job.arguments[1:]
    function = function_of(module.rpartition(".")[2], flags)
    with configuration.parsed(function, job.gin.files, bindings):
      return None
  except configuration.ConfigurationError as error:
    return str(error)
  # What a file imports, and gin's own reader, may raise anything.
  except Exception as error:
    return f"the gin configuration is wrong: {type(error).__name__}: {error}"


def _for_job(job: str, error: str) -> str:
  """Replaces the flags of the job's command by those of the launcher."""
  if job == "trainer":
    return error
  return error.replace("--gin.", f"--{job}.gin.").replace(
    "--gin_file", f"--{job}_gin_file"
  )
