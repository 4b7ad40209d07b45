"""Launches that documents show: flags that fit, and recipes that are whole."""

import pytest
from absl import flags

from launch import gin_check, options
from launch.job_flags import split_bindings
from launch.jobs import Job
from launch.plan import name_of, plan
from tests import test_documents as documents

pytestmark = pytest.mark.slow

_LAUNCHES = [
  command
  for command in documents.COMMANDS
  if command.module == documents.LAUNCHER
  and command.values("--gin_file=")
  and not command.is_abridged
]


def _jobs(arguments: tuple[str, ...]) -> list[Job]:
  others, bindings = split_bindings(["xm_launch", *arguments])
  values = flags.FlagValues()
  options.define(values)
  assert values(others) == ["xm_launch"]
  given = options.read(values)
  assert name_of(given)
  return plan(given, bindings)


@pytest.mark.parametrize("launch", _LAUNCHES, ids=str)
def test_a_documented_launch_could_start(launch: documents.Command):
  jobs = _jobs(launch.arguments)
  errors = [gin_check.error_of(job.gin) for job in jobs]
  assert errors == [None] * len(jobs)


def test_the_page_about_pods_launches_with_every_executor():
  executors = {
    argument
    for launch in _LAUNCHES
    if launch.document == "docs/tpu_pods.md"
    for argument in launch.arguments
    if argument.startswith("--executor")
  }
  assert executors == {"--executor=gke", "--executor=cloud"}
