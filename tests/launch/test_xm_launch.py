"""XManager starts, watches and stops real processes; no container."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from xmanager import xm, xm_cloud
from xmanager.xm_local import executables

from launch import image, xm_launch
from launch.jobs import Job, LaunchError

pytestmark = pytest.mark.slow

_RUN = """
import asyncio, json, sys
from absl import flags
from launch import xm_launch
from launch.jobs import Job

jobs = [Job(name, tuple(arguments), environment)
        for name, arguments, environment in json.loads(sys.argv.pop())]
flags.FLAGS(sys.argv)
asyncio.run(xm_launch.run_locally("test", jobs))
"""
# Follows until it is told to stop, as the index builder does.
_FOLLOWS = """
import pathlib, signal, sys, time
def stop(*_):
  pathlib.Path("stopped").touch()
  sys.exit(0)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("follows").touch()
time.sleep(60)
"""
# Trains until the other job runs, and then for a moment.
_TRAINS = """
import pathlib, time
while not pathlib.Path("follows").exists():
  time.sleep(0.02)
print("trained it's all")
"""


@pytest.fixture
def environment(
  tmp_path: Path, command_environment: dict[str, str]
) -> dict[str, str]:
  # XManager keeps its own records under the home folder.
  return {**command_environment, "HOME": str(tmp_path)}


def _launch(tmp_path, environment, jobs: list[tuple]) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, "-c", _RUN, json.dumps(jobs)],
    cwd=tmp_path,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def _output(process: subprocess.Popen, code: int) -> str:
  output, _ = process.communicate(timeout=120)
  assert process.returncode == code, output
  return output


def _python(name: str, program: str, **variables: str) -> tuple:
  return (name, ["-c", program], variables)


def test_the_builder_runs_beside_the_trainer_and_is_stopped_after_it(
  tmp_path, environment
):
  jobs = [_python("trainer", _TRAINS), _python("builder", _FOLLOWS)]
  output = _output(_launch(tmp_path, environment, jobs), 0)
  assert "[trainer] trained it's all" in output
  assert (tmp_path / "stopped").exists()


def test_the_evaluator_follows_a_trainer_that_succeeded(tmp_path, environment):
  evaluate = "import os; print('evaluated', os.environ['WHERE'])"
  jobs = [
    _python("trainer", "print('trained')"),
    _python("evaluator", evaluate, WHERE="here"),
  ]
  output = _output(_launch(tmp_path, environment, jobs), 0)
  assert "[evaluator] evaluated here" in output
  assert output.index("[trainer] ended") < output.index("[evaluator]")


def test_the_trainers_exit_code_is_the_launchers(tmp_path, environment):
  jobs = [
    _python("trainer", _TRAINS + "raise SystemExit(7)"),
    _python("builder", _FOLLOWS),
    _python("evaluator", "print('evaluated')"),
  ]
  output = _output(_launch(tmp_path, environment, jobs), 7)
  assert (tmp_path / "stopped").exists()
  assert "evaluated" not in output.replace("print('evaluated')", "")


def test_a_builder_that_fails_stops_the_trainer(tmp_path, environment):
  jobs = [
    _python("trainer", _FOLLOWS),
    _python("builder", _TRAINS + "raise SystemExit(5)"),
  ]
  _output(_launch(tmp_path, environment, jobs), 5)
  assert (tmp_path / "stopped").exists()


def test_a_builder_that_is_done_lets_the_trainer_go_on(tmp_path, environment):
  build = "import pathlib; pathlib.Path('follows').touch(); print('built')"
  train = _TRAINS + "time.sleep(0.5); print('and more')"
  jobs = [_python("trainer", train), _python("builder", build)]
  output = _output(_launch(tmp_path, environment, jobs), 0)
  assert "[builder] ended with 0" in output
  assert "[trainer] and more" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_stops_every_job(
  tmp_path, environment, number
):
  process = _launch(tmp_path, environment, [_python("trainer", _FOLLOWS)])
  deadline = time.monotonic() + 60
  while not (tmp_path / "follows").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
  os.kill(process.pid, number)
  _output(process, 128 + number)
  assert (tmp_path / "stopped").exists()


def _command(*arguments: str) -> list[str]:
  return [sys.executable, "-m", "launch.xm_launch", *arguments]


def test_the_command_starts_the_trainer_with_its_flags(
  tmp_path, environment, project_dir
):
  done = subprocess.run(
    _command(
      f"--model_dir={tmp_path}/run", "--corpus_dir=c", "--gin_file=no/such.gin"
    ),
    cwd=project_dir,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )
  # The trainer's own error, and the code that it ends with.
  assert done.returncode == 2, done.stderr
  assert "no/such.gin" in done.stdout.split("\n", 1)[1]


def test_the_command_explains_what_is_missing(environment, project_dir):
  done = subprocess.run(
    _command("--model_dir=runs/a", "--corpus_dir=corpus"),
    cwd=project_dir,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 2
  assert done.stderr.strip().startswith("xm_launch: nothing says what to train")


def _cloud_jobs(jobs: list[Job], tpus: dict[str, str | None]):
  images = {
    job.name: executables.GoogleContainerRegistryImage(job.name, "r/i:t")
    for job in jobs
  }
  return xm_launch.cloud_job_group(jobs, images, tpus=tpus).jobs


def test_on_the_cloud_each_job_has_its_slice():
  jobs = [
    Job("trainer", ("-m", "realm_jax.train"), {"A": "1"}),
    Job("builder", ("-m", "realm_jax.build_index"), {}),
    Job("evaluator", ("-m", "realm_jax.evaluate"), {}),
  ]
  group = _cloud_jobs(
    jobs,
    {"trainer": "v5e:8x8", "builder": "v5p:2x2x4", "evaluator": "v6e-8"},
  )
  requirements = {n: job.executor.requirements for n, job in group.items()}
  slices = {
    n: (r.accelerator, r.topology.name) for n, r in requirements.items()
  }
  assert slices == {
    "trainer": (xm.ResourceType.TPU_V5E, "8x8"),
    "builder": (xm.ResourceType.TPU_V5P, "2x2x4"),
    "evaluator": (xm.ResourceType.TPU_V6E, "2x4"),
  }
  assert group["trainer"].env_vars == {"A": "1"}
  assert group["evaluator"].executor.dependency.job_name == "trainer"


def test_on_the_cloud_a_slice_must_be_named():
  with pytest.raises(LaunchError, match="needs --tpu"):
    _cloud_jobs([Job("trainer", (), {})], {"trainer": None})


def test_the_image_holds_the_tracked_files_and_runs_the_command(
  tmp_path, project_dir
):
  clone = image.copy_clone(tmp_path)
  assert (clone / "launch" / "xm_launch.py").read_bytes() == (
    project_dir / "launch" / "xm_launch.py"
  ).read_bytes()
  assert not (clone / ".venv").exists()

  job = Job(
    "trainer", ("-c", "import sys; print('it is', sys.argv)", "a b"), {}
  )
  packageable = xm_launch.image_of(
    job, clone, registry="registry", base_image="python:3.11"
  )
  assert isinstance(
    packageable.executor_spec, xm_cloud.KubernetesJobExecutor.Spec
  )
  (command,) = packageable.executable_spec.entrypoint.commands
  done = subprocess.run(
    ["bash", "-c", command],
    env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == "it is ['-c', 'a b']\n"
  for step in packageable.executable_spec.docker_instructions:
    if step.startswith("COPY"):
      *_, source, _ = shlex.split(step)
      assert (tmp_path / source).exists()
