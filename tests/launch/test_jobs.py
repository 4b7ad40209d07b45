"""From flags to jobs with processes and devices, and what is refused."""

import pytest
import yaml
from absl import flags, logging

from launch import local_jobs, xm_launch
from launch.jobs import (
  Job,
  Schedule,
  gin_error,
  name_of,
  plan,
  require_readable_gin,
)
from launch.launch_flags import LaunchError, split_bindings

_TRAINER = ("--gin_file=a.gin",)


def test_a_job_with_gin_files_becomes_a_command(planned):
  jobs = planned(
    "local",
    "--model_dir=it's",
    "--gin.NUM_STEPS=3",
    "--env=A=x=y",
    "--env=builder.B=1",
    jobs=("--gin_file=a.gin", "--gin_file=b.gin", "--builder_gin_file=c.gin"),
  )
  directories = ('--gin.MODEL_DIR="it\'s"', "--gin.CORPUS_DIR='corpus'")
  assert {name: job.arguments for name, job in jobs.items()} == {
    "trainer": (
      *("-m", "realm_jax.train", "--gin_file=a.gin", "--gin_file=b.gin"),
      *(*directories, "--gin.NUM_STEPS=3"),
    ),
    "builder": (
      *("-m", "realm_jax.build_index", "--gin_file=c.gin", *directories),
    ),
  }
  assert jobs["trainer"].environment == {"A": "x=y"}
  assert jobs["builder"].environment == {"A": "x=y", "B": "1"}


def test_bindings_go_to_the_job_they_name():
  path = "--gin_file=/data/a.gin.b=c"
  others, bindings = split_bindings(
    [path, '--gin.TASK="cloze"', "--gin.A=3", "--evaluator.gin.K=1==2"]
  )
  assert others == [path]
  assert bindings == {
    "trainer": ['TASK="cloze"', "A=3"],
    "builder": [],
    "evaluator": ["K=1==2"],
  }


@pytest.mark.parametrize(
  ("flags", "schedule"),
  [
    ((), Schedule.AFTER),
    (("--evaluator_follow",), Schedule.BESIDE),
    (
      ("--evaluator_follow", "--evaluator.gin.FOLLOW_UNTIL_STEP=9"),
      Schedule.BESIDE_TO_ITS_END,
    ),
  ],
)
def test_the_evaluator_runs_after_the_trainer_or_beside_it(
  planned, flags, schedule
):
  evaluator = planned("local", *flags)["evaluator"]
  assert evaluator.schedule is schedule
  assert ("--follow" in evaluator.arguments) is bool(flags)


def test_devices_are_simulated_beside_other_flags_of_xla(planned, monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
  jobs = planned(
    "local",
    "--processes=2",
    "--simulated_devices=4",
    "--env=builder.XLA_FLAGS=--xla_b=2",
  )
  assert [job.processes for job in jobs.values()] == [2, 1, 1]
  simulated = "--xla_force_host_platform_device_count=4"
  assert jobs["trainer"].environment == {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"--xla_a=1 {simulated}",
  }
  assert jobs["builder"].environment["XLA_FLAGS"] == f"--xla_b=2 {simulated}"


@pytest.mark.parametrize("executor", ["cloud", "gke"])
def test_a_job_on_a_slice_has_a_process_for_each_host(planned, executor):
  jobs = planned(executor, "--builder_tpu=v5litepod-16")
  processes = {name: job.processes for name, job in jobs.items()}
  # The evaluator has one host of the trainer's kind.
  assert processes == {"trainer": 16, "builder": 4, "evaluator": 1}
  assert str(jobs["evaluator"].tpu) == "v5e 2x2: 4 chips on 1 host"


@pytest.mark.parametrize(
  ("executor", "flags", "jobs", "word"),
  [
    ("local", (), (), "--gin_file"),
    ("local", ("--gin.NUM_STEPS",), _TRAINER, "--gin.NUM_STEPS=VALUE"),
    ("local", ("--reader.gin.A=3",), _TRAINER, "trainer, builder, evaluator"),
    ("local", ("--env=A",), _TRAINER, "JOB.NAME=VALUE"),
    ("local", ("--env=reader.A=1",), _TRAINER, "JOB.NAME=VALUE"),
    ("local", ("--builder.gin.A=1",), _TRAINER, "--builder_gin_file"),
    ("local", ("--builder_processes=2",), _TRAINER, "--builder_gin_file"),
    ("local", ("--env=builder.A=1",), _TRAINER, "--builder_gin_file"),
    ("local", ("--evaluator_follow",), _TRAINER, "--evaluator_gin_file"),
    ("local", ("--tpu=v5e-8",), _TRAINER, "--tpu=v5e-8"),
    ("gke", ("--tpu=v5e-7",), _TRAINER, "v5e has no such slice"),
    ("gke", ("--processes=2",), _TRAINER, "--processes"),
    ("gke", ("--simulated_devices=2",), _TRAINER, "--simulated_devices"),
    ("gke", ("--corpus_dir=/data",), _TRAINER, "CORPUS_DIR=/data"),
    ("cloud", ("--model_dir=runs/a",), _TRAINER, "MODEL_DIR=runs/a"),
    ("cloud", ("--gin.INITIAL_READER=a",), _TRAINER, "INITIAL_READER=a"),
    ("cloud", ('--gin.QUESTIONS = "q"',), _TRAINER, "QUESTIONS=q"),
  ],
)
def test_flags_that_do_not_fit_are_explained(
  planned, executor, flags, jobs, word
):
  with pytest.raises(LaunchError) as caught:
    planned(executor, *flags, jobs=jobs)
  assert word in str(caught.value)


@pytest.mark.parametrize(
  ("executor", "missing"), [("gke", "tpu"), ("cloud", "container_registry")]
)
def test_what_a_cluster_needs_is_named(given, executor, missing):
  values = given(executor)
  values[missing].value = None
  with pytest.raises(LaunchError, match=f"needs --{missing}, as in"):
    plan(values, {"trainer": [], "builder": [], "evaluator": []})


@pytest.mark.parametrize(
  "flag", ["--name=2nd", f"--name={'a' * 41}", "--model_dir=gs://bucket/___"]
)
def test_a_name_that_kubernetes_does_not_admit_is_refused(given, flag):
  with pytest.raises(LaunchError, match="--name"):
    name_of(given("gke", flag))


def test_bindings_that_hosts_can_read_are_not_refused(planned):
  fine = [
    "INITIAL_CHECKPOINT='gs://bucket/ict'",
    "TRAIN_QUESTIONS='tfds:'",
    "GENERATION=500",
    "INITIAL_READER=None",
    "QUESTIONS=%FILE",
  ]
  jobs = planned("gke", *(f"--gin.{binding}" for binding in fine))
  assert jobs["trainer"].gin_bindings[2:] == (*fine,)


@pytest.mark.parametrize(
  ("executor", "flag", "name"),
  [
    ("local", "--model_dir=runs/My_Run/", "My_Run"),
    ("local", "--name=A title", "A title"),
    ("gke", "--model_dir=gs://bucket/My_Run.1/", "my-run-1"),
    ("gke", "--name=realm-2", "realm-2"),
  ],
)
def test_a_run_is_named_after_its_directory(given, executor, flag, name):
  assert name_of(given(executor, flag)) == name


_RECIPES = {
  "trainer": ("gin/runs/reading.gin", ("-m", "realm_jax.train")),
  "builder": ("gin/runs/build_index.gin", ("-m", "realm_jax.build_index")),
  "evaluator": (
    "gin/runs/eval_masked.gin",
    ("-m", "realm_jax.evaluate", "--follow"),
  ),
}
_DIRECTORIES = ("MODEL_DIR='a=b'", "CORPUS_DIR=corpus")


def _job(name, *bindings, model="gin/models/tiny.gin"):
  recipe, arguments = _RECIPES[name]
  files = (model, recipe)
  return Job(name, arguments, Schedule.RUN, {}, files, bindings)


@pytest.mark.parametrize(
  ("job", "error"),
  [
    (_job("trainer", *_DIRECTORIES, "NUM_STEPS = 6"), None),
    (_job("evaluator", *_DIRECTORIES, "FOLLOW_UNTIL_STEP=6"), None),
    (_job("trainer", "CORPUS_DIR=''"), "--gin.MODEL_DIR"),
    (_job("trainer", *_DIRECTORIES, "NUM_STEP=6"), "NUM_STEPS"),
    (_job("trainer", *_DIRECTORIES, "NUM_STEPS='six'"), "num_steps"),
    (_job("trainer", "MODEL_DIR=("), "gin configuration"),
    (_job("trainer", model="no/such.gin"), "no/such.gin"),
  ],
)
def test_gin_files_are_read_as_the_job_reads_them(job, error):
  found = gin_error(job)
  assert found is None if error is None else error in str(found)


def test_each_jobs_error_has_the_launchers_flags():
  jobs = [
    _job("trainer", *_DIRECTORIES),
    _job("evaluator", "CORPUS_DIR=''"),
    _job("builder", "A=1"),
  ]
  with pytest.raises(LaunchError) as caught:
    require_readable_gin(jobs)
  evaluator, builder = str(caught.value).splitlines()
  assert evaluator.startswith("evaluator: ")
  assert "--evaluator.gin.MODEL_DIR=VALUE" in evaluator
  assert builder.startswith("builder: --builder.gin.A ")


_RECIPE = """
include "gin/models/tiny.gin"
include "gin/runs/reading.gin"
NUM_STEPS = %gin.REQUIRED
"""


@pytest.fixture
def launched(given, tmp_path, monkeypatch):
  """`launched(executor, *flags)` runs the launcher."""
  (tmp_path / "recipe.gin").write_text(_RECIPE)
  jobs = (
    f"--gin_file={tmp_path}/recipe.gin",
    "--builder_gin_file=gin/models/tiny.gin",
    "--builder_gin_file=gin/runs/build_index.gin",
  )
  verbosity = logging.get_verbosity()

  def launched(executor, *arguments):
    others, bindings = split_bindings(arguments)
    monkeypatch.setattr(flags, "FLAGS", given(executor, *others, jobs=jobs))
    return xm_launch.main(["xm_launch"], bindings=bindings)

  yield launched
  logging.set_verbosity(verbosity)


def test_the_launcher_prints_a_manifest(launched, capsys):
  bindings = ("--gin.NUM_STEPS=1", "--builder.gin.KEEP_GENERATIONS=2")
  assert launched("gke", "--builder_tpu=v5litepod-16", *bindings) == 0
  document = yaml.safe_load(capsys.readouterr().out)
  assert document["kind"] == "JobSet"
  hosts = {
    job["name"]: job["template"]["spec"]["completions"]
    for job in document["spec"]["replicatedJobs"]
  }
  assert hosts == {"trainer": 16, "builder": 4}


def test_the_launcher_runs_the_jobs_on_this_machine(launched, monkeypatch):
  def run_locally(supervisor, jobs):
    del supervisor
    return len(jobs) + 40

  monkeypatch.setattr(local_jobs, "run_locally", run_locally)
  assert launched("local") == 42


def test_a_dry_run_says_what_would_run_and_what_is_missing(launched, capsys):
  with pytest.raises(LaunchError, match=r"trainer: .*pass --gin\.NUM_STEPS="):
    launched("gke", "--dry_run")
  assert "TPU v5e 8x8: 64 chips on 16 hosts" in capsys.readouterr().out
