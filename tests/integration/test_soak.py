"""What the soak makes of how processes end, with commands of a shell."""

import dataclasses

import pytest

from benchmarks import soak
from benchmarks.faults import disturbed_run, on_disk
from benchmarks.faults.disturbed import CUT, disturbed
from benchmarks.faults.injection import Fault
from benchmarks.faults.report import report
from benchmarks.runs.jobs import Job
from benchmarks.runs.pretraining import Run

_DAMAGED = "train: a.npy does not match; let build_index make it again"


@dataclasses.dataclass(frozen=True)
class ShellRun(Run):
  """A run whose trainer and builder are given as commands of a shell."""

  train: str = "exit 0"
  build: str = "exec sleep 60"

  def trainer(self):
    return self._shell("trainer", self.train)

  def builder(self, name="builder"):
    return self._shell(name, self.build)

  def _shell(self, name, command):
    return Job(name, ["sh", "-c", command], log=self.directory / f"{name}.log")


@pytest.fixture
def shell_run(tmp_path):
  """`shell_run(train=…, build=…)`."""

  def make(**commands):
    return ShellRun(tmp_path, tmp_path, "", 0, 5, **commands)

  return make


def _once(tmp_path, *lines, code):
  """Says lines and ends with a code, and ends well when it starts again."""
  flag = tmp_path / "started"
  said = "; ".join(f"echo '{line}'" for line in lines)
  return f"[ -e {flag} ] && exit 0; touch {flag}; {said}; exit {code}"


def _ended(run, *kinds):
  """A run to its end that was met by faults of these kinds."""
  with disturbed(run) as here:
    here.kinds.update(kinds)
    disturbed_run.complete(here)
  return here


def test_a_builder_may_be_told_to_stop_at_any_time(shell_run):
  # While it imports, nothing handles SIGTERM.
  assert _ended(shell_run()).lines == []
  told = "trap 'echo \"build_index: no room\"; exit 2' TERM"
  here = _ended(
    shell_run(train="sleep 0.5", build=f"{told}; while :; do sleep 0.1; done")
  )
  assert here.lines == ["builder: build_index: no room"]
  assert here.problems == []


def test_a_builder_that_fails_when_it_is_told_to_stop_is_a_problem(shell_run):
  told = "trap 'exit 3' TERM; while :; do sleep 0.1; done"
  account = disturbed_run.finish(shell_run(train="sleep 0.5", build=told))
  assert not account.is_through
  (problem,) = account.problems
  assert problem.startswith("the builder ended with 3")


def test_a_trainer_that_stops_is_a_problem(shell_run, tmp_path):
  here = _ended(shell_run(train=_once(tmp_path, "train: no room", code=2)), CUT)
  assert here.lines == ["trainer: train: no room"]
  assert here.problems == [
    "the trainer should not have stopped: train: no room"
  ]


def test_a_trainer_may_stop_where_all_that_it_could_search_is_damaged(
  shell_run, tmp_path
):
  damaged = shell_run(train=_once(tmp_path, _DAMAGED, "child: bye", code=2))
  here = _ended(damaged, CUT)
  assert here.lines == [f"trainer: {_DAMAGED}"]
  assert here.problems == []


@pytest.mark.parametrize(
  ("lines", "kinds"),
  [
    ([_DAMAGED], ["kill trainer"]),
    (["generation 5 is verified and loaded (0.1 s)", _DAMAGED], [CUT]),
  ],
)
def test_damage_explains_no_other_stop(shell_run, tmp_path, lines, kinds):
  run = shell_run(train=_once(tmp_path, *lines, code=2))
  assert _ended(run, *kinds).problems


def test_only_a_cut_file_explains_sigbus(shell_run, tmp_path):
  flag = tmp_path / "started"
  run = shell_run(train=f"[ -e {flag} ] && exit 0; touch {flag}; kill -BUS $$")
  assert _ended(run, CUT).problems == []
  flag.unlink()
  assert _ended(run, "flip bit").problems


def test_a_job_that_crashes_is_told_and_nothing_is_lost(shell_run):
  planned = [Fault("second builder", -1, 0.0, seed=0)]
  account = disturbed_run.finish(
    shell_run(train="sleep 1; exit 1"), planned, on_disk.KINDS
  )
  assert not account.is_through
  assert [met.what for met in account.met] == ["joined"]
  assert account.problems[0].startswith("the trainer ended with 1")


def test_the_report_names_problems_and_counts_lines(shell_run):
  planned = [Fault("second builder", -1, 0.0, seed=0)]
  run = shell_run(train="echo oh; sleep 1; exit 1")
  broken = disturbed_run.run_with_faults(
    run, [*planned, *planned], on_disk.KINDS, expected=None
  )
  broken["stopped_with"] = [
    "builder: no room in /a/b",
    "builder: no room in /c",
  ]
  result = {"unbroken": {"seconds": 2.0, "problems": []}, "runs": [broken]}
  text = report(result, passed=False)
  assert "second builder           2          0" in text
  assert "   2 × builder: no room in …" in text
  assert "the trainer ended with 1:" in text and "oh" not in text.split()
  assert "2 of 2" in text and "not compared" in text
  assert text.endswith("passed: False")
  broken_down = {"unbroken": {"seconds": 2.0, "problems": ["bad"]}, "runs": []}
  assert "bad" in report(broken_down, passed=False)


def test_what_the_faults_left_decides():
  run = {"index": "EXACT", "problems": [], "differences": []}
  unbroken = {"problems": []}
  assert soak.passed({"unbroken": unbroken, "runs": [run]})
  assert not soak.passed({"unbroken": unbroken, "runs": []})
  for bad in ({"problems": ["x"]}, {"differences": ["x"]}):
    assert not soak.passed({"unbroken": unbroken, "runs": [{**run, **bad}]})


def test_a_folder_is_not_soaked_twice(tmp_path, capsys):
  (tmp_path / "corpus").mkdir()
  with pytest.raises(SystemExit):
    soak.main([f"--output_dir={tmp_path}"])
  assert "is not empty; name another folder" in capsys.readouterr().err
