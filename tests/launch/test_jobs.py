"""From flags to the commands of a run."""

import pytest

from launch.errors import LaunchError
from launch.jobs import Gin, Job, Schedule, jobs_of_run


def _jobs(
  *,
  trainer=("a.gin", "b.gin"),
  builder=(),
  builder_bindings=(),
  evaluator=(),
  evaluator_bindings=(),
  follows=False,
):
  return jobs_of_run(
    model_dir="runs/it's",
    corpus_dir="corpus",
    gin_files={"trainer": trainer, "builder": builder, "evaluator": evaluator},
    bindings={
      "trainer": ["NUM_STEPS=3"],
      "builder": builder_bindings,
      "evaluator": evaluator_bindings,
    },
    environment={"trainer": {}, "builder": {"A": "1"}, "evaluator": {}},
    evaluator_follows=follows,
  )


def test_a_job_with_gin_files_becomes_a_command():
  assert _jobs(builder=["c.gin"]) == [
    Job(
      "trainer",
      (
        "-m",
        "realm_jax.train",
        "--gin_file=a.gin",
        "--gin_file=b.gin",
        """--gin.MODEL_DIR="runs/it's\"""",
        "--gin.CORPUS_DIR='corpus'",
        "--gin.NUM_STEPS=3",
      ),
      Schedule.RUN,
      {},
      Gin(
        ("a.gin", "b.gin"),
        ("""MODEL_DIR="runs/it's\"""", "CORPUS_DIR='corpus'", "NUM_STEPS=3"),
      ),
    ),
    Job(
      "builder",
      (
        "-m",
        "realm_jax.build_index",
        "--gin_file=c.gin",
        """--gin.MODEL_DIR="runs/it's\"""",
        "--gin.CORPUS_DIR='corpus'",
      ),
      Schedule.BESIDE,
      {"A": "1"},
      Gin(("c.gin",), ("""MODEL_DIR="runs/it's\"""", "CORPUS_DIR='corpus'")),
    ),
  ]


def test_a_job_without_gin_files_does_not_run():
  assert [job.name for job in _jobs()] == ["trainer"]


@pytest.mark.parametrize(
  ("follows", "bindings", "schedule"),
  [
    (False, (), Schedule.AFTER),
    (True, (), Schedule.BESIDE),
    (True, ("FOLLOW_UNTIL_STEP=9",), Schedule.BESIDE_TO_ITS_END),
  ],
)
def test_the_evaluator_runs_after_the_trainer_or_beside_it(
  follows, bindings, schedule
):
  *_, job = _jobs(
    evaluator=["e.gin"], evaluator_bindings=bindings, follows=follows
  )
  assert job.schedule is schedule
  assert ("--follow" in job.arguments) is follows


def test_bindings_of_a_job_that_does_not_run_are_refused():
  with pytest.raises(LaunchError, match="pass --builder_gin_file too"):
    _jobs(builder_bindings=["MODE='every'"])


def test_a_run_trains_something():
  with pytest.raises(LaunchError, match="pass --gin_file"):
    _jobs(trainer=())
