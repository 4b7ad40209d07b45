"""What XManager on Cloud is asked for, by its own client, without a server."""

import json

import pytest
from xmanager.xm_cloud import experiment as xm_experiment
from xmanager.xm_local import executables
from xmanager_cloud.experiment_state_server import experiment_state_api
from xmanager_cloud.experiment_state_server.proto import experiment_pb2

from launch import cloud

pytestmark = pytest.mark.slow


class Server:
  """Answers XManager's client, and keeps what it was asked for."""

  def __init__(self):
    self.units = []

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


@pytest.fixture
def server(monkeypatch):
  server = Server()
  experiment = xm_experiment.XManagerCloudExperiment
  leave = experiment.__exit__

  def leave_and_close(experiment, *error):
    leave(experiment, *error)
    # XManager leaves it to the end of the process.
    experiment._event_loop.close()

  monkeypatch.setattr(experiment, "__exit__", leave_and_close)
  for module in (experiment_state_api, xm_experiment.experiment_state_api):
    monkeypatch.setattr(module, "get_experiment_state_api", lambda: server)
  # It would commit the state of the clone and push it.
  monkeypatch.setattr(experiment, "_push_repo_state", lambda self: None)
  return server


@pytest.fixture
def entry_points(monkeypatch):
  """The command of each image, instead of the images that Docker builds."""
  commands = {}

  def package(self, packageables):
    images = []
    for packageable in packageables:
      name = packageable.executor_spec.image_name
      with open(packageable.executable_spec.dockerfile) as file:
        *common, _, entry_point = file.read().splitlines()
      with open(f"{packageable.executable_spec.path}/setup.py"):
        assert "RUN pip install" in common[-1]
      commands[name] = json.loads(entry_point.removeprefix("ENTRYPOINT "))
      images.append(
        executables.GoogleContainerRegistryImage(name=name, image_path=name)
      )
    return images

  monkeypatch.setattr(xm_experiment.XManagerCloudExperiment, "package", package)
  return commands


def test_jobs_on_slices_of_several_hosts_are_submitted(
  server, entry_points, given, planned, capsys
):
  flags = (
    "--builder_tpu=v5e-16",
    "--env=A=1",
    "--max_restarts=3",
    "--service_account=writer",
  )
  jobs = planned("cloud", *flags)
  cloud.submit("a title", list(jobs.values()), given("cloud", *flags))
  run, beside = server.units
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
      *("python", "-m", "launch.pod", *jobs[job.name].arguments),
      "--initialization_timeout_seconds=1800",
    ]
  assert evaluator.dependency_order.job_name == "trainer"
  assert not trainer.dependency_order.job_name
  said = capsys.readouterr().out
  assert "submitted trainer, builder, evaluator as experiments/7" in said
  assert "`xmc stop 7` stops them" in said
