"""From flags to jobs with processes and devices, and what is refused."""

import dataclasses

import pytest

from launch import dry_run
from launch.errors import LaunchError
from launch.plan import name_of

_NO_BUILDER = {"trainer": ["a.gin"], "builder": [], "evaluator": []}


def _for_each(trainer, builder=None, evaluator=None):
  return {"trainer": trainer, "builder": builder, "evaluator": evaluator}


def test_a_job_on_this_machine_has_as_many_processes_as_told(planned):
  jobs = planned(processes=_for_each(2, 3))
  assert [job.processes for job in jobs.values()] == [2, 3, 1]
  assert all(job.tpu is None for job in jobs.values())


def test_devices_are_simulated_beside_other_flags_of_xla(planned, monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
  jobs = planned(simulated_devices=4, env=["builder.XLA_FLAGS=--xla_b=2"])
  simulated = "--xla_force_host_platform_device_count=4"
  assert jobs["trainer"].environment == {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"--xla_a=1 {simulated}",
  }
  assert jobs["builder"].environment["XLA_FLAGS"] == f"--xla_b=2 {simulated}"


@pytest.mark.parametrize("executor", ["cloud", "gke"])
def test_a_job_on_a_slice_has_a_process_for_each_host(planned, executor):
  jobs = planned(executor)
  assert {name: job.processes for name, job in jobs.items()} == {
    "trainer": 16,
    "builder": 4,
    # One host of the trainer's kind.
    "evaluator": 1,
  }
  assert str(jobs["evaluator"].tpu) == "v5e 2x2: 4 chips on 1 host"


@pytest.mark.parametrize(
  ("executor", "flags", "said"),
  [
    ("local", {"processes": _for_each(0)}, "--processes=0; a job has at least"),
    ("local", {"processes": _for_each(1, -2)}, "--builder_processes=-2"),
    ("local", {"simulated_devices": 0}, "--simulated_devices=0"),
    (
      "local",
      {"tpus": _for_each(None, "v5e-8")},
      "--builder_tpu=v5e-8: --executor=local uses the devices of this machine",
    ),
    (
      "local",
      {"gin_files": _NO_BUILDER, "processes": _for_each(1, 2)},
      "--builder_processes is for a job that does not run; "
      "pass --builder_gin_file too",
    ),
    (
      "gke",
      {"gin_files": _NO_BUILDER},
      "--builder_tpu is for a job that does not run",
    ),
    (
      "local",
      {"gin_files": _NO_BUILDER, "env": ["builder.A=1"]},
      "--env=builder.A=1 is for a job that does not run",
    ),
    (
      "local",
      {"gin_files": _NO_BUILDER, "evaluator_follow": True},
      "--evaluator_follow is for a job that does not run",
    ),
    ("gke", {"tpus": _for_each(None)}, "needs --tpu, as in --tpu=v5litepod-64"),
    ("gke", {"tpus": _for_each("v5e-7")}, "v5e has no such slice"),
    ("gke", {"image": None}, "--executor=gke needs --image"),
    (
      "cloud",
      {"container_registry": None},
      "--executor=cloud needs --container_registry",
    ),
    (
      "gke",
      {"processes": _for_each(2)},
      "--processes=2 is for --executor=local; on a slice, each host runs one",
    ),
    ("gke", {"simulated_devices": 2}, "is for --executor=local"),
    ("gke", {"max_restarts": -1}, "--max_restarts=-1"),
    (
      "cloud",
      {"model_dir": "runs/realm"},
      "MODEL_DIR=runs/realm of the trainer is on this machine",
    ),
    ("gke", {"corpus_dir": "/data/corpus"}, "share gs:// paths only"),
  ],
)
def test_flags_that_do_not_fit_are_explained(planned, executor, flags, said):
  with pytest.raises(LaunchError) as caught:
    planned(executor, **flags)
  assert said in str(caught.value)


@pytest.mark.parametrize(
  "binding", ["INITIAL_CHECKPOINT=runs/ict", 'TRAIN_QUESTIONS = "q.jsonl"']
)
def test_a_binding_of_a_path_on_this_machine_is_refused(planned, binding):
  with pytest.raises(LaunchError, match="of the trainer is on this machine"):
    planned("cloud", {"trainer": [binding]})


def test_bindings_that_hosts_can_read_are_not_refused(planned):
  fine = [
    "INITIAL_CHECKPOINT='gs://bucket/ict'",
    "TRAIN_QUESTIONS='tfds:'",
    "GENERATION=500",
    "INITIAL_READER=None",
    "QUESTIONS=%FILE",
    "TASK='open_qa'",
  ]
  assert planned("gke", {"trainer": fine})["trainer"].gin.bindings[2:] == (
    *fine,
  )


@pytest.mark.parametrize(
  ("executor", "flags", "name"),
  [
    ("local", {"model_dir": "runs/My_Run/"}, "My_Run"),
    ("local", {"name": "A title"}, "A title"),
    ("gke", {"model_dir": "gs://bucket/My_Run.1/"}, "my-run-1"),
    ("gke", {"name": "realm-2"}, "realm-2"),
  ],
)
def test_a_run_is_named_after_its_directory(given, executor, flags, name):
  assert name_of(given(executor, **flags)) == name


@pytest.mark.parametrize("name", ["My_Run", "2nd", "a" * 41, "-", ""])
def test_a_name_that_kubernetes_does_not_admit_is_refused(given, name):
  flags = {"name": name} if name else {"model_dir": "gs://bucket/___"}
  with pytest.raises(LaunchError, match="pass --name with at most 40"):
    name_of(given("gke", **flags))


def test_a_dry_run_shows_the_processes_of_this_machine(planned):
  jobs = planned(processes=_for_each(2), env=["A=b c"])
  shown = dry_run.description([jobs["trainer"]]).splitlines()
  common = "$ python -m realm_jax.train --gin_file=train.gin"
  assert shown[:4] == [
    "trainer",
    "  runs until the run is complete",
    "  2 processes on this machine",
    "  environment: A='b c'",
  ]
  assert [line.strip().startswith(common) for line in shown[4:]] == [True] * 2
  assert shown[5].endswith(
    "--coordinator_address=localhost:PORT --num_processes=2 --process_id=1"
  )


def test_a_dry_run_shows_slices(planned):
  jobs = planned("cloud", env=["builder.A=1"])
  builder = dataclasses.replace(jobs["builder"], arguments=("-m", "module"))
  assert dry_run.description([builder]).splitlines() == [
    "builder",
    "  runs beside the trainer, until it has ended",
    "  TPU v5e 4x4: 16 chips on 4 hosts",
    "  4 × ct5lp-hightpu-4t of tpu-v5-lite-podslice, each with "
    "google.com/tpu: 4",
    "  environment: A=1",
    "  $ python -m launch.cluster.pod -m module "
    "--initialization_timeout_seconds=1800",
  ]
