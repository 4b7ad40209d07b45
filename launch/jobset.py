"""A run as a manifest of Kubernetes' JobSet, for `kubectl apply`.

What follows a failure depends on its cause. A job's `podFailurePolicy` makes
the job fail with a message that names the cause, and JobSet's `failurePolicy`
chooses an action by this message, since it sees no exit code. The patterns are
those of Kubernetes' messages (`pkg/controller/job/pod_failure_policy.go`):

    Pod NAMESPACE/POD has condition DisruptionTarget matching FailJob rule at …
    Container NAME for pod NAMESPACE/POD failed with exit code 2 matching …

JobSet matches messages from version 0.10 on. It restarts single jobs, which a
manifest with a builder or an evaluator asks for, from 0.12 on, with the feature
gate `RestartJob`.
"""

import json
from collections.abc import Sequence
from typing import Any

import yaml
from absl import flags

from launch import pod
from launch.jobs import Job, Schedule
from realm_jax.exit_codes import ExitCode

# With which process 0 of a job, and TPUs, are reached by the other hosts.
_PORTS = (8482, 8471)
# From SIGTERM, on which the trainer saves a checkpoint, to SIGKILL. The host of
# a Spot VM gives less.
_GRACE_SECONDS = 300
_TPU = "cloud.google.com/gke-tpu"
_NODE_POOL = "cloud.google.com/gke-nodepool"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_QUEUE = "kueue.x-k8s.io/queue-name"
# Condition of a pod that the cluster ends: by preemption, eviction or the loss
# of its host.
_DISRUPTION = "DisruptionTarget"
_OF_DISRUPTION = [
  f"has condition {_DISRUPTION} matching",
  f"failed with exit code {pod.STOPPED} matching",
]
_OF_USER_ERROR = [f"failed with exit code {ExitCode.USER_ERROR} matching"]


def manifest(
  name: str, jobs: Sequence[Job], given: flags.FlagValues
) -> dict[str, Any]:
  """Returns the JobSet that runs the jobs.

  It is complete when the trainer is, and the evaluator if that comes to an end
  of its own. JobSet then ends the builder. What is started again after a
  failure continues from its files.

  Args:
    name: Name of the JobSet, and of the subdomain in which processes meet.
    jobs: Jobs, the trainer first, each with a slice.
    given: The launcher's flags.
  """
  metadata: dict[str, Any] = {"name": name}
  if given.queue is not None:
    metadata["labels"] = {_QUEUE: given.queue}
  awaited = [j.name for j in jobs if j.schedule is not Schedule.BESIDE]
  return {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": metadata,
    "spec": {
      "network": {"enableDNSHostnames": True, "subdomain": name},
      "successPolicy": {"operator": "All", "targetReplicatedJobs": awaited},
      "failurePolicy": {
        "maxRestarts": given.max_restarts,
        "rules": _failure_rules([j.name for j in jobs if j.name != "trainer"]),
      },
      "replicatedJobs": [_replicated_job(j, given) for j in jobs],
    },
  }


def _failure_rules(others: list[str]) -> list[dict[str, Any]]:
  """Returns what JobSet does after which failure; the first that fits holds.

  A failure that no rule fits restarts all jobs, which is counted.

  Args:
    others: Names of the jobs beside the trainer, which goes on without them.
  """

  reasons = {"onJobFailureReasons": ["PodFailurePolicy"]}
  pattern, target = "onJobFailureMessagePatterns", "targetReplicatedJobs"
  disrupted = {**reasons, pattern: _OF_DISRUPTION}
  rules: list[dict[str, Any]] = [
    {
      "name": "userError",
      "action": "FailJobSet",
      **reasons,
      pattern: _OF_USER_ERROR,
    },
    {
      "name": "trainerDisrupted",
      "action": "RestartJobSetAndIgnoreMaxRestarts",
      target: ["trainer"],
      **disrupted,
    },
  ]
  if others:
    rules += [
      {
        "name": "otherDisrupted",
        "action": "RestartJobAndIgnoreMaxRestarts",
        target: others,
        **disrupted,
      },
      {"name": "otherFailed", "action": "RestartJob", target: others},
    ]
  return rules


def _pod_failure_policy(job: Job) -> dict[str, Any]:
  """Returns the causes of a failure that its message is to name."""

  def on_exit_code(code: int) -> dict[str, Any]:
    codes = {"containerName": job.name, "operator": "In", "values": [code]}
    return {"action": "FailJob", "onExitCodes": codes}

  condition = {"type": _DISRUPTION, "status": "True"}
  return {
    "rules": [
      {"action": "FailJob", "onPodConditions": [condition]},
      on_exit_code(pod.STOPPED),
      on_exit_code(int(ExitCode.USER_ERROR)),
    ]
  }


def _replicated_job(job: Job, given: flags.FlagValues) -> dict[str, Any]:
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
    "podFailurePolicy": _pod_failure_policy(job),
    "template": {"spec": _pod(job, given)},
  }
  replicated: dict[str, Any] = {"name": job.name, "replicas": 1}
  if job.schedule is Schedule.AFTER:
    replicated["dependsOn"] = [{"name": "trainer", "status": "Complete"}]
  return {**replicated, "template": template}


def _pod(job: Job, given: flags.FlagValues) -> dict[str, Any]:
  assert job.tpu is not None
  account = {}
  if given.service_account is not None:
    account["serviceAccountName"] = given.service_account
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
        "image": given.image,
        "command": job.container_command,
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
  # A copy in which nothing is shared, so that nothing becomes an alias.
  copy = json.loads(json.dumps(document))
  return yaml.safe_dump(copy, sort_keys=False, width=1000)
