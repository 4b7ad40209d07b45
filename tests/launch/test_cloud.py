"""What XManager on Cloud is asked for, by its own client, without a server."""

import json
from pathlib import Path
from unittest import mock

import pytest
from xmanager.xm_cloud import experiment as xm_experiment
from xmanager.xm_local import executables
from xmanager_cloud.experiment_state_server import experiment_state_api
from xmanager_cloud.experiment_state_server.proto import experiment_pb2

from realm_jax.launch import cloud

pytestmark = pytest.mark.slow


@pytest.fixture
def submitted(monkeypatch):
  """The work units that the server is asked for, and the images' commands."""
  units, commands = [], {}

  def create_work_unit(request):
    units.append(request.work_unit)
    name = f"{request.parent}/workUnits/{request.work_unit_id}/operations/1"
    return xm_experiment.operations_pb2.Operation(name=name)

  def package(self, packageables):
    (packageable,) = packageables
    name = packageable.executor_spec.image_name
    dockerfile = Path(packageable.executable_spec.dockerfile).read_text()
    entry_point = dockerfile.splitlines()[-1]
    assert "\nRUN pip install" in dockerfile
    assert Path(packageable.executable_spec.path, "setup.py").exists()
    commands[name] = json.loads(entry_point.removeprefix("ENTRYPOINT "))
    return [executables.GoogleContainerRegistryImage(name, name)]

  experiment = xm_experiment.XManagerCloudExperiment
  leave = experiment.__exit__

  def leave_and_close(experiment, *error):
    leave(experiment, *error)
    # XManager leaves it to the end of the process.
    experiment._event_loop.close()

  monkeypatch.setattr(experiment, "__exit__", leave_and_close)
  monkeypatch.setattr(experiment, "package", package)
  # It would commit the state of the clone and push it.
  monkeypatch.setattr(experiment, "_push_repo_state", lambda self: None)
  created = experiment_pb2.Experiment(name="experiments/7", title="a title")
  server = mock.Mock(create_work_unit=create_work_unit)
  server.create_experiment.return_value = created
  for module in (experiment_state_api, xm_experiment.experiment_state_api):
    monkeypatch.setattr(module, "get_experiment_state_api", lambda: server)
  return units, commands


def test_jobs_on_slices_of_several_hosts_are_submitted(
  submitted, given, planned, capsys
):
  flags = (
    "--builder_tpu=v5e-16",
    "--env=A=1",
    "--max_restarts=3",
    "--service_account=writer",
  )
  jobs = planned("cloud", *flags)
  cloud.submit("a title", list(jobs.values()), given("cloud", *flags))
  (run, beside), entry_points = submitted
  trainer, evaluator = run.executable.jobset.jobs
  # A unit of its own, so that the trainer's is complete without it.
  (builder,) = beside.executable.jobset.jobs
  for job, topology, hosts in (
    (trainer, "8x8", 16),
    (evaluator, "2x2", 1),
    (builder, "4x4", 4),
  ):
    tpu = job.spec.resources.tpu_resources
    assert tpu.topology == topology
    assert job.replicas == hosts
    # Each process of the job ends in a restart.
    assert job.retry_limit == 3 * hosts
    assert job.service_account == "writer"
    assert job.spec.docker_image == f"realm-jax-{job.name}"
    assert dict(job.spec.env_vars) == {"A": "1"}
    assert entry_points[f"realm-jax-{job.name}"] == [
      *("python", "-m", "realm_jax.launch.pod", *jobs[job.name].arguments),
      "--initialization_timeout_seconds=1800",
    ]
  assert evaluator.dependency_order.job_name == "trainer"
  said = capsys.readouterr().out
  assert "submitted trainer, builder, evaluator as experiments/7" in said
