"""What tests of launches share."""

import dataclasses
from typing import Any

import pytest

from launch.options import Options
from launch.plan import plan

_LOCAL = Options(
  executor="local",
  name=None,
  model_dir="runs/realm",
  corpus_dir="corpus",
  gin_files={
    "trainer": ["train.gin"],
    "builder": ["build.gin"],
    "evaluator": ["evaluate.gin"],
  },
  env=[],
  evaluator_follow=False,
  dry_run=False,
  processes=dict.fromkeys(("trainer", "builder", "evaluator")),
  simulated_devices=None,
  grace_seconds=300.0,
  tpus=dict.fromkeys(("trainer", "builder", "evaluator")),
  max_restarts=10,
  service_account=None,
  queue=None,
  container_registry=None,
  image=None,
)
_GKE = dataclasses.replace(
  _LOCAL,
  executor="gke",
  model_dir="gs://bucket/realm",
  corpus_dir="gs://bucket/corpus",
  tpus={
    "trainer": "v5litepod-64",
    "builder": "v5litepod-16",
    "evaluator": None,
  },
  image="registry/realm:1",
)


@pytest.fixture
def given():
  """`given(executor, **flags)`: values of the flags of all three jobs."""

  def given(executor: str = "local", **flags: Any) -> Options:
    options = _LOCAL if executor == "local" else _GKE
    if executor == "cloud":
      flags.setdefault("container_registry", "registry")
    return dataclasses.replace(options, executor=executor, **flags)

  return given


@pytest.fixture
def planned(given):
  """`planned(executor, bindings, **flags)`: the jobs, by their names."""

  def planned(executor: str = "local", bindings=None, **flags: Any) -> dict:
    none: dict[str, list[str]] = {"trainer": [], "builder": [], "evaluator": []}
    jobs = plan(given(executor, **flags), none | (bindings or {}))
    return {job.name: job for job in jobs}

  return planned
