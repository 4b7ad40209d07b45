"""From flags to the commands of a run."""

import pytest

from launch.jobs import (
  Job,
  LaunchError,
  jobs_of_run,
  split_bindings,
  split_environment,
)


def test_bindings_go_to_the_job_they_name():
  others, bindings = split_bindings(
    [
      "xm_launch.py",
      "--model_dir=runs/a",
      '--gin.TASK="cloze"',
      "--gin.NUM_STEPS=3",
      "--builder.gin.MODE='every'",
      "--evaluator.gin.K=1==2",
    ]
  )
  assert others == ["xm_launch.py", "--model_dir=runs/a"]
  assert bindings == {
    "trainer": ['TASK="cloze"', "NUM_STEPS=3"],
    "builder": ["MODE='every'"],
    "evaluator": ["K=1==2"],
  }


def test_a_path_with_gin_in_it_is_no_binding():
  argument = "--gin_file=/data/a.gin.b=c"
  assert split_bindings([argument])[0] == [argument]


@pytest.mark.parametrize(
  ("argument", "said"),
  [
    ("--gin.NUM_STEPS", "write --gin.NUM_STEPS=VALUE"),
    ("--reader.gin.NUM_STEPS=3", "the jobs are trainer, builder, evaluator"),
  ],
)
def test_a_wrong_binding_is_explained(argument: str, said: str):
  with pytest.raises(LaunchError, match=said):
    split_bindings([argument])


def test_environment_is_of_all_jobs_or_of_one():
  assert split_environment(["A=1", "builder.JAX_PLATFORMS=cpu", "B=x=y"]) == {
    "trainer": {"A": "1", "B": "x=y"},
    "builder": {"A": "1", "B": "x=y", "JAX_PLATFORMS": "cpu"},
    "evaluator": {"A": "1", "B": "x=y"},
  }


@pytest.mark.parametrize("assignment", ["A", "=1", "reader.A=1", "builder.=1"])
def test_a_wrong_assignment_is_explained(assignment: str):
  with pytest.raises(LaunchError, match="write NAME=VALUE, or JOB"):
    split_environment([assignment])


def _jobs(*, builder=(), builder_bindings=(), trainer=("a.gin", "b.gin")):
  return jobs_of_run(
    model_dir="runs/it's",
    corpus_dir="corpus",
    gin_files={"trainer": trainer, "builder": builder, "evaluator": ()},
    bindings={
      "trainer": ["NUM_STEPS=3"],
      "builder": builder_bindings,
      "evaluator": (),
    },
    environment={"trainer": {}, "builder": {"A": "1"}, "evaluator": {}},
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
      {},
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
      {"A": "1"},
    ),
  ]


def test_a_job_without_gin_files_does_not_run():
  assert [job.name for job in _jobs()] == ["trainer"]


def test_bindings_of_a_job_that_does_not_run_are_refused():
  with pytest.raises(LaunchError, match="pass --builder_gin_file too"):
    _jobs(builder_bindings=["MODE='every'"])


def test_a_run_trains_something():
  with pytest.raises(LaunchError, match="pass --gin_file"):
    _jobs(trainer=())
