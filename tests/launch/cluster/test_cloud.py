"""What XManager on Cloud is asked for, by its own client, without a server."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from xmanager.xm_cloud import experiment as xm_experiment
from xmanager.xm_local import executables
from xmanager_cloud.experiment_state_server import experiment_state_api
from xmanager_cloud.experiment_state_server.proto import (
  experiment_pb2,
  work_unit_pb2,
)

from launch.cluster import cloud, image
from launch.cluster.work_units import UnitStatus
from launch.jobs import Job, Schedule
from launch.xmanager_experiments import image_of, status_of

pytestmark = pytest.mark.slow

_STATUS = work_unit_pb2.WorkUnit().current_work_unit_execution.status


class Server:
  """Answers XManager's client, and keeps what it was asked for."""

  def __init__(self):
    self.units = []
    self.stopped = []

  def create_experiment(self, request):
    return experiment_pb2.Experiment(
      name="experiments/7", title=request.experiment.title
    )

  def create_work_unit(self, request):
    self.units.append(request.work_unit)
    name = f"{request.parent}/workUnits/{request.work_unit_id}/operations/1"
    return xm_experiment.operations_pb2.Operation(name=name)

  def update_experiment_launch_state(self, request):
    pass

  def search_work_units(self, request):
    """All units are complete at once, as far as they can be."""
    for number, unit in enumerate(self.units):
      unit.name = f"{request.parent}/workUnits/{number + 1}"
      state = (
        "RUNNING" if unit.work_unit_type == unit.AUXILIARY else "COMPLETED"
      )
      status = unit.current_work_unit_execution.status
      status.state = _STATUS.WorkUnitState.Value(state)
    return xm_experiment.experiment_state_service_pb2.ListWorkUnitsResponse(
      work_units=self.units
    )

  def batch_stop_work_units(self, request):
    self.stopped.append(request.parent)


class Packages:
  """Stands for Docker: every image has a name of its own."""

  def __init__(self):
    self.commands = {}

  def package(self, packageables=()):
    for packageable in packageables:
      name = packageable.executor_spec.image_name
      (command,) = packageable.executable_spec.entrypoint.commands
      self.commands[name] = command
    return [
      executables.GoogleContainerRegistryImage(
        name=p.executable_spec.name, image_path=p.executor_spec.image_name
      )
      for p in packageables
    ]


@pytest.fixture
def server(monkeypatch):
  server = Server()
  leave = xm_experiment.XManagerCloudExperiment.__exit__

  def leave_and_close(experiment, *error):
    leave(experiment, *error)
    # XManager leaves it to the end of the process.
    experiment._event_loop.close()

  monkeypatch.setattr(
    xm_experiment.XManagerCloudExperiment, "__exit__", leave_and_close
  )
  for module in (experiment_state_api, xm_experiment.experiment_state_api):
    monkeypatch.setattr(module, "get_experiment_state_api", lambda: server)
  # It would commit the state of the clone and push it.
  monkeypatch.setattr(
    xm_experiment.XManagerCloudExperiment, "_push_repo_state", lambda self: None
  )
  return server


@pytest.fixture
def packages(monkeypatch):
  packages = Packages()
  monkeypatch.setattr(
    xm_experiment.XManagerCloudExperiment,
    "package",
    lambda self, packageables: packages.package(packageables),
  )
  # Nothing is built from the copy.
  monkeypatch.setattr(cloud, "copy_clone", lambda directory: directory)
  return packages


def _submit(given, planned, **flags):
  jobs = planned("cloud", **flags)
  return cloud.run_on_cloud(
    "a title", list(jobs.values()), given("cloud", **flags)
  )


def test_jobs_on_slices_of_several_hosts_are_submitted_and_watched(
  server, packages, given, planned, capsys
):
  code = _submit(
    given,
    planned,
    env=["A=1"],
    max_restarts=3,
    queue="tpus",
    service_account="writer",
  )
  assert code == 0
  run, beside = server.units
  assert run.work_unit_type == run.STANDARD
  assert beside.work_unit_type == beside.AUXILIARY
  trainer, evaluator = run.executable.jobset.jobs
  (builder,) = beside.executable.jobset.jobs
  for job, topology, hosts in (
    (trainer, "8x8", 16),
    (evaluator, "8x8", 16),
    (builder, "4x4", 4),
  ):
    tpu = job.spec.resources.tpu_resources
    assert (tpu.type, tpu.topology) == ("tpu-v5-lite-podslice", topology)
    assert job.replicas == hosts
    # Each process of the job ends in a restart.
    assert job.retry_limit == 3 * hosts
    assert job.service_account == "writer"
    assert job.spec.docker_image == f"realm-jax-{job.name}"
    assert dict(job.spec.env_vars) == {"A": "1"}
  assert evaluator.dependency_order.job_name == "trainer"
  assert not trainer.dependency_order.job_name
  assert run.executable.scheduling_constraints.queue_name == "tpus"
  # The builder would go on for ever.
  assert server.stopped == ["experiments/7"]
  said = capsys.readouterr().out
  assert "submitted trainer, builder, evaluator as experiments/7" in said
  assert "trainer, evaluator: COMPLETED\n" in said
  assert packages.commands["realm-jax-builder"].startswith(
    "exec python -m launch.cluster.pod -m realm_jax.build_index --gin_file="
  )


def test_jobs_that_nobody_watches_go_on(
  server, packages, given, planned, capsys
):
  assert _submit(given, planned, watch=False) == 0
  assert server.stopped == []
  assert "`xmc stop 7` stops them" in capsys.readouterr().out


def test_a_status_names_the_jobs_that_failed():
  unit = work_unit_pb2.WorkUnit()
  for name in ("trainer", "evaluator"):
    unit.executable.jobset.jobs.add(name=name)
  status = unit.current_work_unit_execution.status
  status.state = _STATUS.WorkUnitState.Value("PARTIALLY_FAILED")
  jobset = status.detailed_status.jobset_status
  jobset.replicated_jobs_status.add(name="trainer", failed=1)
  jobset.replicated_jobs_status.add(name="evaluator", active=1)
  assert status_of(unit) == UnitStatus(
    ("trainer", "evaluator"), "PARTIALLY_FAILED", ("trainer",)
  )


def test_the_image_holds_the_tracked_files_and_runs_the_command(
  tmp_path, project_dir
):
  clone = image.copy_clone(tmp_path)
  assert (clone / "launch" / "xm_launch.py").read_bytes() == (
    project_dir / "launch" / "xm_launch.py"
  ).read_bytes()
  assert not (clone / ".venv").exists()

  program = "import sys; print('it is', sys.argv)"
  job = Job("trainer", ("-c", program, "a b"), Schedule.RUN)
  packageable = image_of(
    job, clone, registry="registry", base_image="python:3.11"
  )
  (command,) = packageable.executable_spec.entrypoint.commands
  done = subprocess.run(
    ["bash", "-c", command],
    cwd=project_dir,
    env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == (
    "it is ['-c', 'a b', '--initialization_timeout_seconds=1800']\n"
  )
  for step in packageable.executable_spec.docker_instructions:
    if step.startswith("COPY"):
      *_, source, _ = shlex.split(step)
      assert (tmp_path / source).exists()
