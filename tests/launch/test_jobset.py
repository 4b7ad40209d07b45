"""The manifest, checked against the schema of JobSet's resource definition."""

import copy
import re

import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import (
  JobsetV1alpha2JobSet,
)

from realm_jax.errors import ExitCode
from realm_jax.launch import jobset
from realm_jax.launch.slices import parse_slice


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
  values = given("gke", "--service_account=writer")

  def manifest(*flags):
    planned_jobs = [*planned("gke", *flags).values()]
    return yaml.safe_load(jobset.manifest("realm", planned_jobs, values))

  return manifest


def _jobs(document: dict) -> dict[str, dict]:
  return {job["name"]: job for job in document["spec"]["replicatedJobs"]}


def _job_spec(document: dict, name: str = "trainer") -> dict:
  return _jobs(document)[name]["template"]["spec"]


def _pod(document: dict, name: str = "trainer") -> dict:
  return _job_spec(document, name)["template"]["spec"]


@pytest.mark.parametrize("name", ["v5litepod-1", "v4-16"])
def test_completions_are_the_hosts_of_a_slice(manifest, name):
  document, tpu = manifest(f"--tpu={name}"), parse_slice(name)
  assert _read_by_schema(document) == document
  spec, pod = _job_spec(document), _pod(document)
  assert spec["completions"] == spec["parallelism"] == tpu.hosts
  assert spec["completionMode"] == "Indexed"
  # A podFailurePolicy is for pods that are not restarted in place.
  assert pod["restartPolicy"] == "Never"
  assert pod["nodeSelector"] == {
    "cloud.google.com/gke-tpu-accelerator": tpu.accelerator,
    "cloud.google.com/gke-tpu-topology": tpu.topology,
  }
  (container,) = pod["containers"]
  limit = container["resources"]["limits"]["google.com/tpu"]
  assert int(limit) * tpu.hosts == tpu.chips
  # Hosts of one slice must not be mixed with those of another one.
  annotations = _jobs(document)["trainer"]["template"].get("metadata")
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
  (evaluator,) = _pod(document, "evaluator")["containers"]
  assert ("--follow" in evaluator["command"]) is bool(flags)
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


def _action(document: dict, job: str, code: int, *, disrupted: bool) -> str:
  """What JobSet does when a process of a job ends with an exit code.

  As Kubernetes' `matchPodFailurePolicy` and JobSet's `executeFailurePolicy` do.
  """
  message = None
  for rule in _job_spec(document, job)["podFailurePolicy"]["rules"]:
    assert rule["action"] == "FailJob"
    if code in rule.get("onExitCodes", {}).get("values", ()):
      message = f"Container {job} for pod x failed with exit code {code}"
    if disrupted and rule.get("onPodConditions"):
      assert rule["onPodConditions"][0]["type"] == "DisruptionTarget"
      message = "Pod x has condition DisruptionTarget"
    if message is not None:
      break
  for rule in document["spec"]["failurePolicy"]["rules"]:
    patterns = rule.get("onJobFailureMessagePatterns", [""])
    said = f"{message} matching FailJob rule at index 0"
    if (
      (message is not None or "onJobFailureReasons" not in rule)
      and any(re.search(pattern, said) for pattern in patterns)
      and job in rule.get("targetReplicatedJobs", [job])
    ):
      return rule["action"]
  return "RestartJobSet"


@pytest.mark.parametrize(
  ("job", "code", "disrupted", "action"),
  [
    # A disruption is nobody's fault, however the process has ended.
    ("trainer", 143, False, "RestartJobSetAndIgnoreMaxRestarts"),
    ("trainer", 137, True, "RestartJobSetAndIgnoreMaxRestarts"),
    ("builder", 143, True, "RestartJobAndIgnoreMaxRestarts"),
    # A user's error would be repeated by each restart.
    ("trainer", ExitCode.USER_ERROR, False, "FailJobSet"),
    # All else may succeed the next time.
    ("trainer", ExitCode.STORE_OUTAGE, False, "RestartJobSet"),
    # The trainer goes on without the others.
    ("builder", 1, False, "RestartJob"),
    ("evaluator", 139, False, "RestartJob"),
  ],
)
def test_what_follows_a_failure_depends_on_its_cause(
  manifest, job, code, disrupted, action
):
  assert _action(manifest(), job, code, disrupted=disrupted) == action


def test_a_container_runs_the_jobs_command(manifest):
  readable = ("--gin.TRAIN_QUESTIONS='tfds:'", "--gin.SNAPSHOT=500")
  document = manifest("--env=builder.A=it's 1", *readable)
  # The evaluator has one host of the trainer's kind.
  assert _job_spec(document, "evaluator")["completions"] == 1
  pod = _pod(document, "builder")
  assert pod["serviceAccountName"] == "writer"
  (container,) = pod["containers"]
  assert container["image"] == "registry/realm:1"
  assert container["env"] == [{"name": "A", "value": "it's 1"}]
  assert container["command"] == [
    *("python", "-m", "realm_jax.launch.pod", "-m", "realm_jax.build_index"),
    "--gin_file=build.gin",
    "--gin.MODEL_DIR='gs://bucket/realm'",
    "--gin.CORPUS_DIR='gs://bucket/corpus'",
    "--initialization_timeout_seconds=1800",
  ]
