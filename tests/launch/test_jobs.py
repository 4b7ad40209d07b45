"""From flags to jobs with processes and slices, and what is refused."""

import pytest
import yaml
from absl import flags, logging

from realm_jax.errors import RealmError
from realm_jax.launch import xm_launch
from realm_jax.launch.jobs import split_bindings
from realm_jax.launch.slices import parse_slice


def test_a_job_with_gin_files_becomes_a_command(planned):
  jobs = planned(
    "local",
    "--model_dir=it's",
    "--gin.NUM_STEPS=3",
    "--env=A=x=y",
    "--env=builder.B=1",
    jobs=(
      "--gin_file=a.gin.b=c",
      "--gin_file=b.gin",
      "--builder_gin_file=c.gin",
    ),
  )
  directories = ('--gin.MODEL_DIR="it\'s"', "--gin.CORPUS_DIR='corpus'")
  assert {name: job.arguments for name, job in jobs.items()} == {
    "trainer": (
      *("-m", "realm_jax.train", "--gin_file=a.gin.b=c", "--gin_file=b.gin"),
      *(*directories, "--gin.NUM_STEPS=3", "--max_restarts=10"),
    ),
    "builder": (
      *("-m", "realm_jax.build_index", "--gin_file=c.gin", *directories),
      "--max_restarts=10",
    ),
  }
  assert jobs["trainer"].environment == {"A": "x=y"}
  assert jobs["builder"].environment == {"A": "x=y", "B": "1"}


@pytest.mark.parametrize(
  ("executor", "flag", "word"),
  [
    ("local", "--gin.A=1", "--gin_file"),
    ("local", "--builder.gin.A=1", "--builder_gin_file"),
    ("gke", "--corpus_dir=/data", "CORPUS_DIR=/data"),
    ("cloud", "--gin.INITIAL_READER='/etc'", "INITIAL_READER"),
    # These would do nothing.
    ("local", "--builder_tpu=v5e-8", "--builder_tpu"),
    ("gke", "--builder_processes=2", "--builder_processes"),
    ("gke", "--simulated_devices=2", "--simulated_devices"),
    # It has no gin files, and would not run.
    ("local", "--evaluator_processes=2", "--evaluator_gin_file"),
  ],
)
def test_flags_that_do_not_fit_are_explained(planned, executor, flag, word):
  jobs = () if word == "--gin_file" else ("--gin_file=a.gin",)
  with pytest.raises(RealmError, match=word):
    planned(executor, flag, jobs=jobs)


@pytest.fixture
def launched(given, monkeypatch):
  """`launched(executor, *flags)` runs the launcher."""
  jobs = (
    *("--gin_file=gin/models/tiny.gin", "--gin_file=gin/runs/pretrain.gin"),
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
  evaluator = (
    "--evaluator_gin_file=gin/models/tiny.gin",
    "--evaluator_gin_file=gin/runs/eval_masked.gin",
    *("--evaluator_follow", "--evaluator.gin.FOLLOW_UNTIL_STEP=6"),
  )
  assert launched("gke", "--gin.NUM_STEPS=1", *evaluator) == 0
  document = yaml.safe_load(capsys.readouterr().out)
  jobs = document["spec"]["replicatedJobs"]
  assert [job["name"] for job in jobs] == ["trainer", "builder", "evaluator"]


def test_a_dry_run_says_what_would_run_and_what_is_wrong(launched, capsys):
  with pytest.raises(RealmError, match=r"builder: --builder\.gin\.A"):
    launched("gke", "--dry_run", "--builder.gin.A=1")
  said = capsys.readouterr().out
  assert "TPU v5e 8x8: 64 chips on 16 × ct5lp-hightpu-4t" in said


@pytest.mark.parametrize(
  ("name", "described"),
  [
    ("v5litepod-1", "v5e 1x1: 1 chips on 1 × ct5lp-hightpu-1t"),
    ("v6e-8", "v6e 2x4: 8 chips on 1 × ct6e-standard-8t"),
    # The sizes of these are TensorCores, two a chip.
    ("v4:4x4x12", "v4 4x4x12: 192 chips on 48 × ct4p-hightpu-4t"),
  ],
)
def test_a_slice_has_chips_and_hosts(name, described):
  assert str(parse_slice(name)) == described
