"""A run as a manifest of Kubernetes' JobSet, for `kubectl apply`.

The reaction to a failure depends on its cause. A job's `podFailurePolicy` makes
the job fail with a message about the cause, and JobSet's `failurePolicy`
chooses an action by this message, because it has no access to exit codes. The
patterns match messages of Kubernetes
(`pkg/controller/job/pod_failure_policy.go`):

    Pod NAMESPACE/POD has condition DisruptionTarget matching FailJob rule at …
    Container NAME for pod NAMESPACE/POD failed with exit code 2 matching …

JobSet matches messages from version 0.10 on. A manifest with a builder or an
evaluator needs restarts of single jobs, which JobSet supports from 0.12 on,
with the feature gate `RestartJob`.
"""

import json
import string
from collections.abc import Sequence
from typing import Any

import yaml
from absl import flags

from realm_jax.errors import ExitCode
from realm_jax.launch import pod
from realm_jax.launch.jobs import Job, Schedule

# The first failure rule that matches counts. A failure without a matching rule
# restarts all jobs, which is counted. The trainer can run without the others.
_JOBSET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: $name}
spec:
  network: {enableDNSHostnames: true, subdomain: $name}
  successPolicy: {operator: All, targetReplicatedJobs: $awaited}
  failurePolicy:
    maxRestarts: $max_restarts
    rules:
    - name: userError
      action: FailJobSet
      onJobFailureReasons: [PodFailurePolicy]
      onJobFailureMessagePatterns: [failed with exit code $user_error matching]
    - name: trainerDisrupted
      action: RestartJobSetAndIgnoreMaxRestarts
      targetReplicatedJobs: [trainer]
      onJobFailureReasons: [PodFailurePolicy]
      onJobFailureMessagePatterns:
      - has condition DisruptionTarget matching
      - failed with exit code $stopped matching
    - name: otherDisrupted
      action: RestartJobAndIgnoreMaxRestarts
      targetReplicatedJobs: $others
      onJobFailureReasons: [PodFailurePolicy]
      onJobFailureMessagePatterns:
      - has condition DisruptionTarget matching
      - failed with exit code $stopped matching
    - name: otherFailed
      action: RestartJob
      targetReplicatedJobs: $others
  replicatedJobs: $jobs
"""
# A job whose pods are the hosts of one slice, which start together or not at
# all. Pods have 300 seconds from SIGTERM, when the trainer saves a checkpoint,
# to SIGKILL; on Spot VMs they have less. The ports are for connections of the
# other hosts to process 0, and between TPUs.
_JOB = """
name: $name
replicas: 1
template:
  spec:
    parallelism: $hosts
    completions: $hosts
    completionMode: Indexed
    backoffLimit: 0
    podFailurePolicy:
      rules:
      - action: FailJob
        onPodConditions: [{type: DisruptionTarget, status: "True"}]
      - action: FailJob
        onExitCodes: {containerName: $name, operator: In, values: [$stopped]}
      - action: FailJob
        onExitCodes: {containerName: $name, operator: In, values: [$user_error]}
    template:
      spec:
        restartPolicy: Never
        terminationGracePeriodSeconds: 300
        nodeSelector:
          cloud.google.com/gke-tpu-accelerator: $accelerator
          cloud.google.com/gke-tpu-topology: $topology
        containers:
        - name: $name
          image: $image
          command: $command
          env: $env
          ports:
          - {containerPort: 8482, protocol: TCP}
          - {containerPort: 8471, protocol: TCP}
          resources: {limits: {google.com/tpu: $chips_per_host}}
"""


def manifest(name: str, jobs: Sequence[Job], given: flags.FlagValues) -> str:
  """Returns the JobSet that runs the jobs, as YAML.

  The JobSet is complete when the trainer is, and the evaluator, if it ends by
  itself. JobSet then ends the builder. Jobs that are restarted after a failure
  continue from their files.

  Args:
    name: Name of the JobSet, and of the subdomain of its processes.
    jobs: Jobs, the trainer first, each with a slice.
    given: The launcher's flags.
  """
  others = [job.name for job in jobs if job.name != "trainer"]
  document = _filled(
    _JOBSET,
    name=name,
    awaited=[j.name for j in jobs if j.schedule is not Schedule.BESIDE],
    max_restarts=given.max_restarts,
    others=others,
    jobs=[_replicated_job(job, given) for job in jobs],
  )
  if not others:
    del document["spec"]["failurePolicy"]["rules"][2:]
  return yaml.safe_dump(document, sort_keys=False, width=1000)


def _replicated_job(job: Job, given: flags.FlagValues) -> dict[str, Any]:
  assert job.tpu is not None
  filled = _filled(
    _JOB,
    name=job.name,
    hosts=job.tpu.hosts,
    accelerator=job.tpu.accelerator,
    topology=job.tpu.topology,
    image=given.image,
    command=job.container_command,
    env=[{"name": n, "value": v} for n, v in job.environment.items()],
    chips_per_host=str(job.tpu.chips_per_host),
  )
  template = filled["template"]
  if given.service_account is not None:
    pod_spec = template["spec"]["template"]["spec"]
    pod_spec["serviceAccountName"] = given.service_account
  if job.tpu.hosts > 1:
    # Otherwise hosts of two slices with the same topology could be mixed.
    exclusive = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    node_pool = "cloud.google.com/gke-nodepool"
    template["metadata"] = {"annotations": {exclusive: node_pool}}
  if job.schedule is Schedule.AFTER:
    filled["dependsOn"] = [{"name": "trainer", "status": "Complete"}]
  return filled


def _filled(template: str, **values: Any) -> dict[str, Any]:
  """Fills values, as JSON, into a YAML template, and parses it."""
  texts = {name: json.dumps(value) for name, value in values.items()}
  codes = {"user_error": int(ExitCode.USER_ERROR), "stopped": pod.STOPPED}
  return yaml.safe_load(string.Template(template).substitute(codes, **texts))
