"""A run as a manifest of Kubernetes' JobSet, for `kubectl apply`."""

from collections.abc import Sequence
from typing import Any

import yaml

from launch.cluster import pod
from launch.jobs import Job, Schedule

# With which process 0 of a job, and TPUs, are reached by the other hosts.
_PORTS = (8482, 8471)
# From SIGTERM, on which the trainer saves a checkpoint, to SIGKILL. The host of
# a Spot VM gives less.
_GRACE_SECONDS = 300
_TPU = "cloud.google.com/gke-tpu"
_NODE_POOL = "cloud.google.com/gke-nodepool"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_QUEUE = "kueue.x-k8s.io/queue-name"


def manifest(
  name: str,
  jobs: Sequence[Job],
  *,
  image: str,
  max_restarts: int,
  service_account: str | None = None,
  queue: str | None = None,
) -> dict[str, Any]:
  """Returns the JobSet that runs the jobs.

  It is complete when the trainer is, and the evaluator if that comes to an end
  of its own. JobSet then ends the builder. If a process fails, or a host is
  taken away, JobSet starts all jobs again, and each continues from its files.

  Args:
    name: Name of the JobSet, and of the subdomain in which processes meet.
    jobs: Jobs, the trainer first, each with a slice.
    image: Container image of all jobs.
    max_restarts: Restarts before the JobSet has failed.
    service_account: Kubernetes service account of the processes.
    queue: Queue of Kueue, if the cluster has it.
  """
  metadata: dict[str, Any] = {"name": name}
  if queue is not None:
    metadata["labels"] = {_QUEUE: queue}
  awaited = [j.name for j in jobs if j.schedule is not Schedule.BESIDE]
  return {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": metadata,
    "spec": {
      "network": {"enableDNSHostnames": True, "subdomain": name},
      "successPolicy": {"operator": "All", "targetReplicatedJobs": awaited},
      "failurePolicy": {"maxRestarts": max_restarts},
      "replicatedJobs": [
        _replicated_job(j, image, service_account) for j in jobs
      ],
    },
  }


def _replicated_job(
  job: Job, image: str, service_account: str | None
) -> dict[str, Any]:
  """Returns a job whose pods are the hosts of one slice."""
  assert job.tpu is not None
  template: dict[str, Any] = {}
  if job.tpu.hosts > 1:
    # Otherwise hosts of two slices of one topology could be mixed.
    template["metadata"] = {"annotations": {_EXCLUSIVE: _NODE_POOL}}
  template["spec"] = {
    "parallelism": job.tpu.hosts,
    "completions": job.tpu.hosts,
    "completionMode": "Indexed",
    # The processes of a slice start together or not at all: JobSet restarts.
    "backoffLimit": 0,
    "template": {"spec": _pod(job, image, service_account)},
  }
  replicated: dict[str, Any] = {"name": job.name, "replicas": 1}
  if job.schedule is Schedule.AFTER:
    replicated["dependsOn"] = [{"name": "trainer", "status": "Complete"}]
  return {**replicated, "template": template}


def _pod(job: Job, image: str, service_account: str | None) -> dict[str, Any]:
  assert job.tpu is not None
  account = {}
  if service_account is not None:
    account["serviceAccountName"] = service_account
  return {
    **account,
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": _GRACE_SECONDS,
    "nodeSelector": {
      f"{_TPU}-accelerator": job.tpu.generation.accelerator,
      f"{_TPU}-topology": job.tpu.topology,
    },
    "containers": [
      {
        "name": job.name,
        "image": image,
        "command": pod.command_of(job),
        "env": [
          {"name": name, "value": value}
          for name, value in job.environment.items()
        ],
        "ports": [
          {"containerPort": port, "protocol": "TCP"} for port in _PORTS
        ],
        "resources": {
          "limits": {"google.com/tpu": str(job.tpu.chips_per_host)}
        },
      }
    ],
  }


def as_yaml(document: dict[str, Any]) -> str:
  """Formats a manifest as YAML, its fields in their order."""
  return yaml.safe_dump(document, sort_keys=False, width=1000)
