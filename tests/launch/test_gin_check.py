"""Gin files of a launch are read before anything is started."""

import pytest

from launch import gin_check
from launch.errors import LaunchError
from launch.jobs import Gin, Job, Schedule

# Like a recipe, but of what is imported in a moment.
_RECIPE = """
from __gin__ import dynamic_registration
from launch import jobs

OUTPUT_DIR = %gin.REQUIRED
NUM_STEPS = 8
jobs.Job.name = %OUTPUT_DIR
jobs.Job.processes = %NUM_STEPS
"""


@pytest.fixture
def job(tmp_path):
  """`job(name, *bindings)`: a job with a gin file."""
  recipe = tmp_path / "recipe.gin"
  recipe.write_text(_RECIPE)

  def job(name, *bindings):
    return Job(name, (), Schedule.RUN, gin=Gin((str(recipe),), bindings))

  return job


def test_gin_files_that_the_job_can_read_have_no_error(job):
  fine = job("trainer", "OUTPUT_DIR='a=b'", "NUM_STEPS = 6")
  assert gin_check.error_of(fine.gin) is None


@pytest.mark.parametrize(
  ("bindings", "said"),
  [
    ((), "no value for OUTPUT_DIR; pass --gin.OUTPUT_DIR=VALUE"),
    (("OUTPUT_DIR=''", "NUM_STEP=6"), "did you mean NUM_STEPS"),
    (("OUTPUT_DIR=''", "NUM_STEPS='six'"), "Job.processes wants an int"),
    (("OUTPUT_DIR=(",), "the gin configuration is wrong"),
  ],
)
def test_what_is_wrong_with_bindings_is_said(job, bindings, said):
  assert said in gin_check.error_of(job("trainer", *bindings).gin)


def test_a_missing_file_is_named():
  assert "no/such.gin" in str(gin_check.error_of(Gin(("no/such.gin",))))


def test_each_jobs_error_has_the_launchers_flags(job):
  jobs = [
    job("trainer", "OUTPUT_DIR=''"),
    job("evaluator"),
    job("builder", "A=1"),
  ]
  with pytest.raises(LaunchError) as caught:
    gin_check.require_readable(jobs)
  assert str(caught.value).splitlines() == [
    "evaluator: no value for OUTPUT_DIR; pass --evaluator.gin.OUTPUT_DIR=VALUE "
    "or a --evaluator_gin_file that binds it",
    "builder: --builder.gin.A binds a name that no gin file uses; "
    "--gin_help shows the names",
  ]
