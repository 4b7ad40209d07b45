"""How a job's command ends in a container, and finds the other processes."""

import os
import signal
import subprocess
import sys

import pytest

from realm_jax.launch.local_jobs import free_address

_ENDS = "import signal, sys, time\n{}\nprint('ready', flush=True)\n{}"
_CRASHES_ONCE = """
import os
if os.path.exists("crashed"):
  sys.exit(2)
os.mkdir("crashed")
os.kill(os.getpid(), 11)
"""
_SAVES = "signal.signal(signal.SIGTERM, lambda *_: sys.exit({}))"


@pytest.mark.parametrize(
  ("handle", "then", "is_told", "code"),
  [
    ("", "sys.exit(2)", False, 2),
    # A trainer that was preempted has not succeeded; an error stays one.
    (_SAVES.format(0), "time.sleep(60)", True, 143),
    (_SAVES.format(5), "time.sleep(60)", True, 5),
    # Without a handler, the signal ends the command.
    ("", "time.sleep(60)", True, 143),
    # What crashes is started again, and then ends with an error of the user.
    ("", _CRASHES_ONCE, False, 2),
  ],
)
def test_the_exit_code_tells_how_the_command_ended(
  project_dir, tmp_path, handle, then, is_told, code
):
  with subprocess.Popen(
    # Without site, Python starts in a moment.
    [
      *(sys.executable, "-S", "-m", "realm_jax.launch.pod"),
      *("-Sc", _ENDS.format(handle, then)),
    ],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(project_dir)},
    stdout=subprocess.PIPE,
    text=True,
  ) as pod:
    assert pod.stdout is not None
    assert pod.stdout.readline() == "ready\n"
    if is_told:
      pod.send_signal(signal.SIGTERM)
    assert pod.wait(60) == code


_PROCESS = """
from jax._src.clusters import cloud_tpu_cluster
cloud_tpu_cluster.running_in_cloud_tpu_vm = True

from realm_jax.partitioning import processes
from realm_jax.partitioning.agreement import Agreement

# No flag says where they meet.
processes.initialize(initialization_timeout_seconds=60)
agreement = Agreement("hosts")
print(agreement.exchange("hosts", agreement.index, list), flush=True)
processes.leave(0)
"""


@pytest.mark.slow
def test_a_slices_hosts_are_the_processes_of_a_job(
  project_dir, command_environment
):
  host, _, port = free_address().partition(":")
  environment = {
    **os.environ,
    **command_environment,
    # What GKE's webhook writes into the pods of a JobSet that ask for TPUs.
    "TPU_WORKER_HOSTNAMES": f"{host},{host}",
    "TPU_SKIP_MDS_QUERY": "true",
    # jax asks the metadata server for what is not there at all.
    "MEGASCALE_COORDINATOR_ADDRESS": "",
    "MEGASCALE_NUM_SLICES": "",
    "MEGASCALE_SLICE_ID": "",
    "JAX_COORDINATOR_PORT": port,
  }
  started = [
    subprocess.Popen(
      [sys.executable, "-c", _PROCESS],
      cwd=project_dir,
      env=environment | {"TPU_WORKER_ID": worker},
      stdout=subprocess.PIPE,
      text=True,
    )
    for worker in "01"
  ]
  outputs = [process.communicate(timeout=120)[0] for process in started]
  assert outputs == ["[0, 1]\n"] * 2
