"""Which processes start, stop and are killed when, with scripts as jobs."""

import os
import signal
import sys
import threading
import time

import pytest

from launch import local_jobs
from launch.jobs import Job, Schedule
from launch.local_jobs import Supervisor, run_locally

_SCHEDULES = {
  "trainer": Schedule.RUN,
  "builder": Schedule.BESIDE,
  "evaluator": Schedule.AFTER,
}
# Follows until it is told to stop, as the index builder does. One of several
# processes then also says which it is, by its third argument.
_FOLLOWS = 'trap "echo $0 >> stopped; exit 0" TERM; touch follows "./$3"; {}'
_FOLLOWS = _FOLLOWS.format("while true; do sleep 0.02; done")
_WHEN_IT_FOLLOWS = "until [ -e follows ]; do sleep 0.02; done; "
_DEAF = 'trap "" TERM; touch "./$3"; while true; do sleep 0.02; done'


def _job(name, script, *, processes=1, schedule=None, **environment):
  schedule = schedule or _SCHEDULES[name]
  arguments = ("-c", script, name)
  return Job(name, arguments, schedule, environment, processes=processes)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The folder in which scripts run."""
  monkeypatch.setattr(local_jobs, "_SECONDS_AFTER_FAILURE", 0.3)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def _run(*jobs, grace_seconds=30.0):
  return Supervisor(grace_seconds, ["sh"]).run(jobs)


def _stopped(folder):
  path = folder / "stopped"
  return sorted(path.read_text().split()) if path.exists() else []


def test_no_evaluator_runs_after_a_trainer_that_failed(folder):
  jobs = [
    _job("trainer", _WHEN_IT_FOLLOWS + "exit 7"),
    _job("builder", _FOLLOWS),
    _job("evaluator", "touch evaluated"),
  ]
  assert _run(*jobs) == 7
  assert _stopped(folder) == ["builder"]
  assert not (folder / "evaluated").exists()


def test_the_evaluator_runs_after_the_others(folder, capfd):
  jobs = [
    _job("trainer", _WHEN_IT_FOLLOWS + "echo it\\'s trained"),
    _job("builder", _FOLLOWS),
    _job("evaluator", "echo evaluated $WHERE", WHERE="here"),
  ]
  assert _run(*jobs) == 0
  assert _stopped(folder) == ["builder"]
  said = capfd.readouterr().out
  assert "[trainer] it's trained\n" in said
  assert "[evaluator] evaluated here\n" in said
  assert said.index("[builder] ended with exit code 0") < said.index(
    "evaluated"
  )


def test_a_builder_that_fails_stops_the_trainer(folder, capfd):
  builder = _job("builder", _WHEN_IT_FOLLOWS + "kill -9 $$")
  assert _run(_job("trainer", _FOLLOWS), builder) == -9
  assert _stopped(folder) == ["trainer"]
  assert "builder failed with signal 9\n" in capfd.readouterr().out


def test_a_builder_that_is_done_lets_the_trainer_go_on(folder):
  trainer = _job("trainer", _WHEN_IT_FOLLOWS + "sleep 0.2; touch trained")
  assert _run(trainer, _job("builder", "touch follows")) == 0
  assert (folder / "trained").exists()


def test_one_process_that_fails_ends_the_others_of_its_job_first(folder, capfd):
  # Processes 1 and 2 are told to end: one does, the other must be killed.
  script = f"""case "$*" in
    *process_id=0*)
      for ready in ./--process_id=1 ./--process_id=2 builds; do
        until [ -e $ready ]; do sleep 0.02; done
      done
      head -c 100000 /dev/zero | tr '\\0' x; echo out of memory
      exit 3;;
    *process_id=1*) {_FOLLOWS};;
    *) {_DEAF};;
  esac"""
  builder = _job(
    "builder",
    'trap "exit 0" TERM; touch builds; while true; do sleep 0.02; done',
  )
  assert _run(_job("trainer", script, processes=3), builder) == 3
  said = capfd.readouterr().out.splitlines()
  # A process is named after its last words.
  assert said[-7].endswith("xout of memory")
  assert said[-6:] == [
    "[trainer-0] ended with exit code 3",
    "trainer-0 failed with exit code 3; stopping trainer-1, trainer-2",
    "[trainer-1] ended with exit code 0",
    "trainer-2 has not ended; killing it",
    "[trainer-2] ended with signal 9",
    "[builder] ended with exit code 0",
  ]


def test_an_evaluator_that_follows_is_stopped_with_the_builder(folder):
  jobs = [
    _job("trainer", _WHEN_IT_FOLLOWS + "sleep 0.1"),
    _job("builder", _FOLLOWS),
    _job("evaluator", _FOLLOWS, schedule=Schedule.BESIDE),
  ]
  assert _run(*jobs) == 0
  assert _stopped(folder) == ["builder", "evaluator"]


def test_the_builder_serves_an_evaluator_to_its_own_end(folder):
  # The last checkpoint may wait for its generation.
  script = "until [ -e trained ]; do sleep 0.02; done; test ! -e stopped"
  jobs = [
    _job("trainer", _WHEN_IT_FOLLOWS + "touch trained"),
    _job("builder", _FOLLOWS),
    _job("evaluator", script, schedule=Schedule.BESIDE_TO_ITS_END),
  ]
  assert _run(*jobs) == 0
  assert _stopped(folder) == ["builder"]


def test_the_trainer_goes_on_without_an_evaluator_that_follows(folder):
  evaluator = _job(
    "evaluator", "touch follows; exit 4", schedule=Schedule.BESIDE
  )
  trainer = _job("trainer", _WHEN_IT_FOLLOWS + "sleep 0.2; touch trained")
  assert _run(trainer, evaluator) == 4
  assert (folder / "trained").exists()


@pytest.mark.parametrize(
  ("script", "num_signals", "grace_seconds", "code"),
  [(_FOLLOWS, 1, 60, 0), (_DEAF, 1, 0.3, -9), (_DEAF, 2, 60, -9)],
)
def test_a_signal_stops_every_job_and_a_second_one_kills(
  folder, capfd, script, num_signals, grace_seconds, code
):
  def interrupt():
    for index in range(2):
      while not (folder / f"--process_id={index}").exists():
        time.sleep(0.02)
    for _ in range(num_signals):
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(0.2)

  thread = threading.Thread(target=interrupt)
  thread.start()
  begin = time.monotonic()
  supervisor = Supervisor(grace_seconds, ["sh"])
  assert run_locally(supervisor, [_job("trainer", script, processes=2)]) == 130
  thread.join()
  assert time.monotonic() - begin < 40
  ended = f"ended with {'signal 9' if code else 'exit code 0'}\n"
  assert capfd.readouterr().out.count(ended) == 2


def test_the_processes_of_a_job_are_told_where_they_meet(folder, capfd):
  del folder
  program = "import sys; print(*sys.argv[1:])"
  job = Job("trainer", ("-Sc", program), Schedule.RUN, processes=2)
  assert Supervisor(30.0, [sys.executable]).run([job]) == 0
  said = capfd.readouterr().out
  for index in range(2):
    assert f" --num_processes=2 --process_id={index}\n[" in said
