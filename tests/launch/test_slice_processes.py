"""The processes of a slice find each other by what GKE tells them, as jax does.

There is no TPU here, so the processes are told that there is one.
"""

import os
import subprocess
import sys

import pytest

from launch.local_jobs import free_address

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
