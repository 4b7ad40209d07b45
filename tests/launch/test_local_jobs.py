"""Which processes start, stop and are killed when, with scripts as jobs."""

import os
import signal
import threading
import time

import pytest

from realm_jax.launch import local_jobs
from realm_jax.launch.jobs import Job, Schedule
from realm_jax.launch.local_jobs import run_locally

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
  return run_locally(jobs, grace_seconds=grace_seconds, command=["sh"])


def _stopped(folder):
  path = folder / "stopped"
  return sorted(path.read_text().split()) if path.exists() else []


@pytest.mark.parametrize(
  ("name", "other", "end", "code"),
  [
    ("trainer", "builder", "exit 7", 7),
    ("builder", "trainer", "kill -9 $$", 137),
  ],
)
def test_a_trainer_or_a_builder_that_fails_ends_the_run(
  folder, name, other, end, code
):
  jobs = [
    _job(name, _WHEN_IT_FOLLOWS + end),
    _job(other, _FOLLOWS),
    _job("evaluator", "touch evaluated"),
  ]
  assert _run(*jobs) == code
  assert _stopped(folder) == [other]
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
  _, ended, later = said.partition("[builder] ended with exit code 0")
  assert ended and "[evaluator] evaluated here\n" in later


def test_one_process_that_fails_ends_the_others_of_its_job_first(folder, capfd):
  # Process 1 does not end when it is told to, and must be killed.
  script = f"""case "$*" in
    *process_id=0*)
      until [ -e ./--process_id=1 ] && [ -e follows ]; do sleep 0.02; done
      head -c 100000 /dev/zero | tr '\\0' x; echo out of memory
      exit 3;;
    *) {_DEAF};;
  esac"""
  jobs = [_job("trainer", script, processes=2), _job("builder", _FOLLOWS)]
  assert _run(*jobs) == 3
  *_, words, first, _, _, other, builder = capfd.readouterr().out.splitlines()
  # A process is named after its last words.
  assert words.endswith("xout of memory")
  assert first == "[trainer-0] ended with exit code 3"
  assert other == "[trainer-1] ended with signal 9"
  assert builder == "[builder] ended with exit code 0"


@pytest.mark.parametrize(
  ("schedule", "script", "stopped"),
  [
    (Schedule.BESIDE, _FOLLOWS, ["builder", "evaluator"]),
    # The builder serves it to its end: the last checkpoint may wait for its
    # snapshot.
    (
      Schedule.BESIDE_TO_ITS_END,
      "until [ -e trained ]; do sleep 0.02; done; test ! -e stopped",
      ["builder"],
    ),
  ],
)
def test_an_evaluator_that_follows_is_stopped_or_ends(
  folder, schedule, script, stopped
):
  jobs = [
    _job("trainer", _WHEN_IT_FOLLOWS + "sleep 0.1; touch trained"),
    _job("builder", _FOLLOWS),
    _job("evaluator", script, schedule=schedule),
  ]
  assert _run(*jobs) == 0
  assert _stopped(folder) == stopped


def test_jobs_end_if_another_one_cannot_be_started(folder, capfd):
  builder = _job("builder", "true", WITH_NULL="\0")
  with pytest.raises(ValueError, match="null byte"):
    _run(_job("trainer", _FOLLOWS), builder)
  assert "[trainer] ended with" in capfd.readouterr().out


def test_the_trainer_goes_on_without_an_evaluator_that_fails(folder):
  script = "touch follows; exit 4"
  evaluator = _job("evaluator", script, schedule=Schedule.BESIDE)
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
  job = _job("trainer", script, processes=2)
  assert _run(job, grace_seconds=grace_seconds) == 130
  thread.join()
  ended = f"ended with {'signal 9' if code else 'exit code 0'}\n"
  said = capfd.readouterr().out
  assert said.count(ended) == 2
  assert "--num_processes=2 --process_id=1" in said
