"""What tests of launches share."""

import pytest
from absl import flags

from realm_jax.launch import jobs as launch_jobs

_JOBS = (
  "--gin_file=train.gin",
  "--builder_gin_file=build.gin",
  "--evaluator_gin_file=evaluate.gin",
)
_ON_SLICES = (
  "--model_dir=gs://bucket/realm",
  "--corpus_dir=gs://bucket/corpus",
  "--tpu=v5litepod-64",
)
_EXECUTORS = {
  "local": ("--model_dir=runs/realm", "--corpus_dir=corpus"),
  "gke": (*_ON_SLICES, "--image=registry/realm:1"),
  "cloud": (*_ON_SLICES, "--container_registry=registry"),
}


@pytest.fixture
def given():
  """`given(executor, *flags, jobs=…)`: flags of all three jobs, or of others.

  A flag that is given again replaces the one of the executor.
  """

  def given(executor="local", *others, jobs=_JOBS):
    values = flags.FlagValues()
    launch_jobs.define(values)
    executors = (f"--executor={executor}", *_EXECUTORS[executor])
    values(["xm_launch", *executors, *jobs, *others])
    return values

  return given


@pytest.fixture
def planned(given):
  """`planned(executor, *flags, jobs=…)`: the jobs, by their names."""

  def planned(executor="local", *arguments, **jobs):
    others, bindings = launch_jobs.split_bindings(arguments)
    plan = launch_jobs.plan(given(executor, *others, **jobs), bindings)
    return {job.name: job for job in plan}

  return planned
