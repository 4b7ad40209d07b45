"""Flags that name a job."""

import pytest

from launch.errors import LaunchError
from launch.job_flags import split_bindings, split_environment


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
