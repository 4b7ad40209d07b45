"""The manifest, checked against the schema of JobSet's resource definition."""

import copy
import re
from typing import NamedTuple

import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import (
  JobsetV1alpha2JobSet,
)

from launch import jobset
from launch.launch_flags import split_bindings
from launch.slices import parse_slice
from realm_jax.exit_codes import ExitCode


def _read_by_schema(document: dict) -> dict:
  """What the generated models keep of a document: fields that they know.

  They raise where a value has another type.
  """
  read = JobsetV1alpha2JobSet.from_dict(copy.deepcopy(document))
  assert read is not None
  return read.to_dict()


@pytest.fixture
def manifest(planned, given):
  """`manifest(*flags)`: the document that the cluster reads."""

  def manifest(*flags, **jobs):
    planned_jobs = planned("gke", *flags, **jobs)
    others, _ = split_bindings(flags)
    text = jobset.as_yaml(
      jobset.manifest(
        "realm", list(planned_jobs.values()), given("gke", *others, **jobs)
      )
    )
    return yaml.safe_load(text)

  return manifest


def _jobs(document: dict) -> dict[str, dict]:
  return {job["name"]: job for job in document["spec"]["replicatedJobs"]}


def _job_spec(document: dict, name: str = "trainer") -> dict:
  return _jobs(document)[name]["template"]["spec"]


def _pod(document: dict, name: str = "trainer") -> dict:
  return _job_spec(document, name)["template"]["spec"]


@pytest.mark.parametrize("name", ["v5litepod-1", "v4-16", "v6e-256"])
def test_completions_are_the_hosts_of_a_slice(manifest, name):
  document = manifest(f"--tpu={name}", "--builder_tpu=v5e-16")
  assert _read_by_schema(document) == document
  for job, wanted in (("trainer", name), ("builder", "v5e-16")):
    tpu, spec, pod = (
      parse_slice(wanted),
      _job_spec(document, job),
      _pod(document, job),
    )
    assert spec["completions"] == spec["parallelism"] == tpu.hosts
    assert spec["completionMode"] == "Indexed"
    # A podFailurePolicy is for pods that are not restarted in place.
    assert pod["restartPolicy"] == "Never"
    assert pod["nodeSelector"] == {
      "cloud.google.com/gke-tpu-accelerator": tpu.generation.accelerator,
      "cloud.google.com/gke-tpu-topology": tpu.topology,
    }
    (container,) = pod["containers"]
    limit = container["resources"]["limits"]["google.com/tpu"]
    assert int(limit) * tpu.hosts == tpu.chips
    # Hosts of one slice must not be mixed with those of another one.
    annotations = _jobs(document)[job]["template"].get("metadata")
    assert (annotations is not None) == (tpu.hosts > 1)


@pytest.mark.parametrize(
  ("flags", "awaited", "waits"),
  [
    ((), ["trainer", "evaluator"], ["evaluator"]),
    (("--evaluator_follow",), ["trainer"], []),
    (
      ("--evaluator_follow", "--evaluator.gin.FOLLOW_UNTIL_STEP=9"),
      ["trainer", "evaluator"],
      [],
    ),
  ],
)
def test_the_trainer_ends_what_has_no_end_of_its_own(
  manifest, flags, awaited, waits
):
  document = manifest("--env=A=1", "--env=B=2", *flags)
  assert _read_by_schema(document) == document
  # JobSet admits nothing to wait for in the first job.
  assert list(_jobs(document)) == ["trainer", "builder", "evaluator"]
  assert document["spec"]["successPolicy"] == {
    "operator": "All",
    "targetReplicatedJobs": awaited,
  }
  ends = [{"name": "trainer", "status": "Complete"}]
  waiting = {
    name: job.get("dependsOn") for name, job in _jobs(document).items()
  }
  assert waiting == {name: ends if name in waits else None for name in waiting}


class _FailedPod(NamedTuple):
  """The first pod of a job that has failed."""

  exit_code: int
  conditions: tuple[str, ...] = ()


def _job_failure(document: dict, job: str, pod: _FailedPod) -> tuple[str, str]:
  """The reason and the message with which Kubernetes lets a job fail.

  As `matchPodFailurePolicy` in Kubernetes' pkg/controller/job does.
  """
  spec = _job_spec(document, job)
  for index, rule in enumerate(spec["podFailurePolicy"]["rules"]):
    assert rule["action"] == "FailJob"
    if "onExitCodes" in rule:
      wanted = rule["onExitCodes"]
      assert wanted["operator"] == "In"
      assert wanted["containerName"] == job
      if pod.exit_code in wanted["values"]:
        return "PodFailurePolicy", (
          f"Container {job} for pod default/realm-{job}-0-0-x failed with exit "
          f"code {pod.exit_code} matching FailJob rule at index {index}"
        )
      continue
    for condition in pod.conditions:
      if {"type": condition, "status": "True"} in rule["onPodConditions"]:
        return "PodFailurePolicy", (
          f"Pod default/realm-{job}-0-0-x has condition {condition} matching "
          f"FailJob rule at index {index}"
        )
  assert spec["backoffLimit"] == 0
  return (
    "BackoffLimitExceeded",
    "Job has reached the specified backoff limit",
  )


class _Cluster:
  """What JobSet's controller does when jobs fail.

  As `executeFailurePolicy` in JobSet's pkg/controllers does.
  """

  def __init__(self, document: dict):
    self._document = document
    self._policy = document["spec"]["failurePolicy"]
    self.counted = 0

  def restarted(self, **failed: _FailedPod) -> list[str] | None:
    """The jobs that are started again; None if the JobSet has failed."""
    action, job = self._first_match(
      {job: _job_failure(self._document, job, p) for job, p in failed.items()}
    )
    if action == "FailJobSet":
      return None
    if not action.endswith("AndIgnoreMaxRestarts"):
      if self.counted >= self._policy["maxRestarts"]:
        return None
      self.counted += 1
    alone = action.startswith("RestartJob") and "Set" not in action
    return [job] if alone else list(_jobs(self._document))

  def _first_match(self, failures: dict) -> tuple[str, str]:
    for rule in self._policy["rules"]:
      for job, (reason, message) in failures.items():
        reasons = rule.get("onJobFailureReasons")
        patterns = rule.get("onJobFailureMessagePatterns")
        targets = rule.get("targetReplicatedJobs")
        if (
          (not reasons or reason in reasons)
          and (not patterns or any(re.search(p, message) for p in patterns))
          and (not targets or job in targets)
        ):
          return rule["action"], job
    return "RestartJobSet", next(iter(failures))


_ALL = ["trainer", "builder", "evaluator"]
_PREEMPTED = _FailedPod(143, ("PodReadyToStartContainers", "DisruptionTarget"))
_KILLED = _FailedPod(137, ("DisruptionTarget",))


@pytest.mark.parametrize(
  ("failed", "restarted", "counted"),
  [
    # A disruption is nobody's fault, however the process has ended.
    ({"trainer": _PREEMPTED}, _ALL, 0),
    ({"trainer": _KILLED}, _ALL, 0),
    ({"trainer": _FailedPod(143)}, _ALL, 0),
    ({"trainer": _FailedPod(2, ("DisruptionTarget",))}, _ALL, 0),
    ({"builder": _PREEMPTED}, ["builder"], 0),
    ({"evaluator": _KILLED}, ["evaluator"], 0),
    ({"builder": _FailedPod(1), "trainer": _PREEMPTED}, _ALL, 0),
    # A user's error would be repeated by each restart.
    ({"trainer": _FailedPod(ExitCode.USER_ERROR)}, None, 0),
    ({"builder": _FailedPod(ExitCode.USER_ERROR)}, None, 0),
    ({"evaluator": _FailedPod(ExitCode.USER_ERROR)}, None, 0),
    ({"trainer": _PREEMPTED, "builder": _FailedPod(2)}, None, 0),
    # All else may succeed the next time.
    ({"trainer": _FailedPod(1)}, _ALL, 1),
    ({"trainer": _FailedPod(137)}, _ALL, 1),
    ({"trainer": _FailedPod(ExitCode.STORE_OUTAGE)}, _ALL, 1),
    # The trainer goes on without the others.
    ({"builder": _FailedPod(1)}, ["builder"], 1),
    ({"evaluator": _FailedPod(139)}, ["evaluator"], 1),
  ],
)
def test_what_follows_a_failure_depends_on_its_cause(
  manifest, failed, restarted, counted
):
  cluster = _Cluster(manifest())
  assert cluster.restarted(**failed) == restarted
  assert cluster.counted == counted


def test_a_trainer_alone_needs_no_restart_of_single_jobs(manifest):
  document = manifest(jobs=("--gin_file=a.gin",))
  rules = document["spec"]["failurePolicy"]["rules"]
  assert {rule["action"] for rule in rules} == {
    "FailJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
  }


def test_a_container_runs_the_jobs_command(manifest):
  document = manifest(
    "--env=builder.A=it's 1", "--service_account=writer", "--queue=tpus"
  )
  pod = _pod(document, "builder")
  assert pod["serviceAccountName"] == "writer"
  assert document["metadata"] == {
    "name": "realm",
    "labels": {"kueue.x-k8s.io/queue-name": "tpus"},
  }
  (container,) = pod["containers"]
  assert container["image"] == "registry/realm:1"
  assert container["env"] == [{"name": "A", "value": "it's 1"}]
  assert container["command"] == [
    *("python", "-m", "launch.pod", "-m", "realm_jax.build_index"),
    "--gin_file=build.gin",
    "--gin.MODEL_DIR='gs://bucket/realm'",
    "--gin.CORPUS_DIR='gs://bucket/corpus'",
    "--initialization_timeout_seconds=1800",
  ]
