"""Gin files of a launch are read before anything is started."""

import dataclasses

import pytest

from launch import gin_check
from launch.errors import LaunchError
from launch.jobs import Gin, Job, Schedule

_MODEL = "gin/models/tiny.gin"
_RECIPES = {
  "trainer": ("gin/runs/reading.gin", ("-m", "realm_jax.train")),
  "builder": ("gin/runs/build_index.gin", ("-m", "realm_jax.build_index")),
  "evaluator": (
    "gin/runs/eval_masked.gin",
    ("-m", "realm_jax.evaluate", "--follow"),
  ),
}
_DIRECTORIES = ("MODEL_DIR='a=b'", "CORPUS_DIR=corpus")


def _job(name, *bindings):
  recipe, arguments = _RECIPES[name]
  return Job(name, arguments, Schedule.RUN, gin=Gin((_MODEL, recipe), bindings))


def test_gin_files_that_the_job_can_read_have_no_error():
  for fine in (
    _job("trainer", *_DIRECTORIES, "NUM_STEPS = 6"),
    _job("evaluator", *_DIRECTORIES, "FOLLOW_UNTIL_STEP=6"),
  ):
    assert gin_check.error_of(fine) is None


@pytest.mark.parametrize(
  ("bindings", "said"),
  [
    (("CORPUS_DIR=''",), "no value for MODEL_DIR; pass --gin.MODEL_DIR=VALUE"),
    ((*_DIRECTORIES, "NUM_STEP=6"), "did you mean NUM_STEPS"),
    ((*_DIRECTORIES, "NUM_STEPS='six'"), "TrainConfig.num_steps wants an int"),
    (("MODEL_DIR=(",), "the gin configuration is wrong"),
  ],
)
def test_what_is_wrong_with_bindings_is_said(bindings, said):
  assert said in gin_check.error_of(_job("trainer", *bindings))


def test_a_missing_file_is_named():
  job = _job("trainer")
  job = dataclasses.replace(job, gin=Gin(("no/such.gin",)))
  assert "no/such.gin" in str(gin_check.error_of(job))


def test_each_jobs_error_has_the_launchers_flags():
  jobs = [
    _job("trainer", *_DIRECTORIES),
    _job("evaluator", "CORPUS_DIR=''"),
    _job("builder", "A=1"),
  ]
  with pytest.raises(LaunchError) as caught:
    gin_check.require_readable(jobs)
  assert str(caught.value).splitlines() == [
    "evaluator: no value for MODEL_DIR; pass --evaluator.gin.MODEL_DIR=VALUE "
    "or a --evaluator_gin_file that binds it",
    "builder: --builder.gin.A binds a name that no gin file uses; "
    "--gin_help shows the names",
  ]
