"""The manifest, checked against the schema of JobSet's resource definition."""

import copy

import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import (
  JobsetV1alpha2JobSet,
)

from launch.cluster import jobset
from launch.cluster.slices import GENERATIONS, parse_slice

_FOLLOWS = {"evaluator_follow": True}
_TO_ITS_END = {"evaluator": ["FOLLOW_UNTIL_STEP=9"]}


def _read_by_schema(document: dict) -> dict:
  """What the generated models keep of a document: fields that they know.

  They raise where a value has another type.
  """
  read = JobsetV1alpha2JobSet.from_dict(copy.deepcopy(document))
  assert read is not None
  return read.to_dict()


@pytest.fixture
def manifest(planned):
  """`manifest(bindings, **flags)`: the document that the cluster reads."""

  def manifest(bindings=None, **flags):
    jobs = planned("gke", bindings, **flags)
    text = jobset.as_yaml(
      jobset.manifest(
        "realm",
        list(jobs.values()),
        image="registry/realm:1",
        max_restarts=7,
        service_account="writer",
        queue="tpus",
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


@pytest.mark.parametrize(
  ("bindings", "flags"),
  [(None, {}), (None, _FOLLOWS), (_TO_ITS_END, _FOLLOWS)],
)
def test_every_field_is_one_of_the_schema(manifest, bindings, flags):
  document = manifest(bindings, env=["A=1", "B=2"], **flags)
  assert _read_by_schema(document) == document


@pytest.mark.parametrize(
  ("path", "name", "value"),
  [
    ((), "specs", {}),
    (("metadata",), "label", {}),
    (("spec",), "maxRestarts", 3),
    (("spec", "network"), "enableDnsHostnames", True),
    (("spec", "failurePolicy"), "maxRestart", 3),
    (("spec", "successPolicy"), "operators", "All"),
    (("spec", "replicatedJobs", 0), "replica", 1),
    (("spec", "replicatedJobs", 2, "dependsOn", 0), "state", "Complete"),
    (("spec", "replicatedJobs", 0, "template"), "parallelism", 16),
    (("spec", "replicatedJobs", 0, "template", "spec"), "completion", 16),
  ],
)
def test_a_misspelt_or_misplaced_field_would_be_found(
  manifest, path, name, value
):
  document = manifest()
  place = document
  for part in path:
    place = place[part]
  place[name] = value
  assert _read_by_schema(document) != document


@pytest.mark.parametrize(
  ("change", "value"),
  [
    (lambda d: _job_spec(d), ("completions", "16")),
    (lambda d: _pod(d), ("terminationGracePeriodSeconds", "300")),
    (
      lambda d: _pod(d)["nodeSelector"],
      ("cloud.google.com/gke-tpu-topology", 4),
    ),
    (lambda d: _pod(d)["containers"][0], ("command", "python -m x")),
    (lambda d: _pod(d)["containers"][0]["env"][0], ("value", 1)),
    (lambda d: d["spec"]["failurePolicy"], ("maxRestarts", "7")),
  ],
)
def test_a_value_of_a_wrong_type_would_be_found(manifest, change, value):
  document = manifest(env=["A=1"])
  name, wrong = value
  change(document)[name] = wrong
  with pytest.raises(ValueError, match="validation error"):
    _read_by_schema(document)


_SLICES = [name for generation in GENERATIONS for name in generation.names]


@pytest.mark.parametrize("name", _SLICES)
def test_completions_are_the_hosts_of_each_topology(manifest, name):
  tpu = parse_slice(name)
  document = manifest(
    tpus={"trainer": name, "builder": "v5litepod-16", "evaluator": None}
  )
  assert _read_by_schema(document) == document
  for job, wanted in (("trainer", tpu), ("builder", parse_slice("v5e-16"))):
    spec, pod = _job_spec(document, job), _pod(document, job)
    assert spec["completions"] == spec["parallelism"] == wanted.hosts
    assert spec["completionMode"] == "Indexed"
    assert pod["nodeSelector"] == {
      "cloud.google.com/gke-tpu-accelerator": wanted.generation.accelerator,
      "cloud.google.com/gke-tpu-topology": wanted.topology,
    }
    (container,) = pod["containers"]
    limit = container["resources"]["limits"]["google.com/tpu"]
    assert int(limit) * wanted.hosts == wanted.chips
    # Hosts of one slice must not be mixed with those of another one.
    annotations = _jobs(document)[job]["template"].get("metadata")
    assert (annotations is not None) == (wanted.hosts > 1)


def test_the_trainer_is_the_first_job_and_ends_the_builder(manifest):
  document = manifest()
  spec = document["spec"]
  assert list(_jobs(document)) == ["trainer", "builder", "evaluator"]
  assert spec["successPolicy"] == {
    "operator": "All",
    "targetReplicatedJobs": ["trainer", "evaluator"],
  }
  assert _jobs(document)["evaluator"]["dependsOn"] == [
    {"name": "trainer", "status": "Complete"}
  ]
  # Only the evaluator waits; JobSet admits no such field in the first job.
  assert "dependsOn" not in _jobs(document)["trainer"]
  assert "dependsOn" not in _jobs(document)["builder"]


@pytest.mark.parametrize(
  ("bindings", "awaited"),
  [(None, ["trainer"]), (_TO_ITS_END, ["trainer", "evaluator"])],
)
def test_an_evaluator_that_follows_is_awaited_if_it_has_an_end(
  manifest, bindings, awaited
):
  document = manifest(bindings, **_FOLLOWS)
  policy = document["spec"]["successPolicy"]
  assert policy["targetReplicatedJobs"] == awaited
  assert "dependsOn" not in _jobs(document)["evaluator"]
  (container,) = _pod(document, "evaluator")["containers"]
  assert "--follow" in container["command"]


def test_a_failure_restarts_all_jobs(manifest):
  document = manifest()
  assert document["spec"]["failurePolicy"] == {"maxRestarts": 7}
  assert _job_spec(document)["backoffLimit"] == 0
  assert _pod(document)["restartPolicy"] == "Never"


def test_a_container_runs_the_jobs_command(manifest):
  document = manifest(env=["builder.A=it's 1"])
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
    *("python", "-m", "launch.cluster.pod", "-m", "realm_jax.build_index"),
    "--gin_file=build.gin",
    "--gin.MODEL_DIR='gs://bucket/realm'",
    "--gin.CORPUS_DIR='gs://bucket/corpus'",
    "--initialization_timeout_seconds=1800",
  ]
