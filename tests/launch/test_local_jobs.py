"""Which processes start, stop and are killed when, with scripts as jobs."""

import asyncio
import contextlib
import time

import pytest

from launch import local_jobs
from launch.jobs import Job, Schedule
from launch.local_jobs import Supervisor

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


class Scripts:
  """Processes of sh."""

  def __init__(self, directory):
    self.directory = directory
    self.started = {}

  async def start(self, name, job, arguments):
    self.started[name] = await asyncio.create_subprocess_exec(
      *("sh", *arguments), cwd=self.directory, start_new_session=True
    )
    return self.started[name]

  @property
  def codes(self):
    return {name: process.returncode for name, process in self.started.items()}


def _job(name, script, *, processes=1, schedule=None):
  schedule = schedule or _SCHEDULES[name]
  return Job(name, ("-c", script, name), schedule, processes=processes)


@pytest.fixture
def scripts(tmp_path, monkeypatch):
  monkeypatch.setattr(local_jobs, "_SECONDS_AFTER_FAILURE", 0.3)
  return Scripts(tmp_path)


def _run(scripts, *jobs, grace_seconds=30.0):
  supervisor = Supervisor(scripts.start, grace_seconds=grace_seconds)
  return asyncio.run(supervisor.run(jobs))


def _stopped(scripts):
  with contextlib.suppress(FileNotFoundError):
    return (scripts.directory / "stopped").read_text().split()
  return []


def test_no_evaluator_runs_after_a_trainer_that_failed(scripts):
  jobs = [
    _job("trainer", _WHEN_IT_FOLLOWS + "exit 7"),
    _job("builder", _FOLLOWS),
    _job("evaluator", "touch evaluated"),
  ]
  assert _run(scripts, *jobs) == 7
  assert _stopped(scripts) == ["builder"]
  assert not (scripts.directory / "evaluated").exists()


def test_a_builder_that_fails_stops_the_trainer(scripts, capfd):
  builder = _job("builder", _WHEN_IT_FOLLOWS + "kill -9 $$")
  assert _run(scripts, _job("trainer", _FOLLOWS), builder) == -9
  assert _stopped(scripts) == ["trainer"]
  assert "builder failed with signal 9\n" in capfd.readouterr().out


def test_a_builder_that_is_done_lets_the_trainer_go_on(scripts):
  trainer = _job("trainer", _WHEN_IT_FOLLOWS + "sleep 0.2; touch trained")
  assert _run(scripts, trainer, _job("builder", "touch follows")) == 0
  assert (scripts.directory / "trained").exists()


def test_one_process_that_fails_ends_the_others_of_its_job_first(
  scripts, capfd
):
  # Processes 1 and 2 are told to end: one does, the other must be killed.
  script = f"""case "$*" in
    *process_id=0*)
      for ready in ./--process_id=1 ./--process_id=2 builds; do
        until [ -e $ready ]; do sleep 0.02; done
      done
      exit 3;;
    *process_id=1*) {_FOLLOWS};;
    *) {_DEAF};;
  esac"""
  builder = _job(
    "builder",
    'trap "exit 0" TERM; touch builds; while true; do sleep 0.02; done',
  )
  trainer = _job("trainer", script, processes=3)
  assert _run(scripts, trainer, builder) == 3
  assert scripts.codes == {
    "trainer-0": 3,
    "trainer-1": 0,
    "trainer-2": -9,
    "builder": 0,
  }
  said = capfd.readouterr().out.splitlines()
  assert said[-1] == "[builder] ended with exit code 0"
  assert "trainer-0 failed with exit code 3; stopping trainer-1, trainer-2" in (
    said
  )
  assert "trainer-2 has not ended; killing it" in said


def test_an_evaluator_that_follows_is_stopped_with_the_builder(scripts):
  jobs = [
    _job("trainer", _WHEN_IT_FOLLOWS + "sleep 0.1"),
    _job("builder", _FOLLOWS),
    _job("evaluator", _FOLLOWS, schedule=Schedule.BESIDE),
  ]
  assert _run(scripts, *jobs) == 0
  assert sorted(_stopped(scripts)) == ["builder", "evaluator"]


def test_the_builder_serves_an_evaluator_to_its_own_end(scripts):
  # The last checkpoint may wait for its generation.
  script = "until [ -e trained ]; do sleep 0.02; done; test ! -e stopped"
  jobs = [
    _job("trainer", _WHEN_IT_FOLLOWS + "touch trained"),
    _job("builder", _FOLLOWS),
    _job("evaluator", script, schedule=Schedule.BESIDE_TO_ITS_END),
  ]
  assert _run(scripts, *jobs) == 0
  assert scripts.codes["evaluator"] == 0
  assert _stopped(scripts) == ["builder"]


def test_the_trainer_goes_on_without_an_evaluator_that_follows(scripts):
  evaluator = _job(
    "evaluator", "touch follows; exit 4", schedule=Schedule.BESIDE
  )
  trainer = _job("trainer", _WHEN_IT_FOLLOWS + "sleep 0.2; touch trained")
  assert _run(scripts, trainer, evaluator) == 4
  assert (scripts.directory / "trained").exists()


def _run_and_cancel(scripts, times, **settings):
  async def run():
    supervisor = Supervisor(scripts.start, **settings)
    trainer = _job("trainer", _DEAF, processes=2)
    task = asyncio.create_task(supervisor.run([trainer]))
    for index in range(2):
      while not (scripts.directory / f"--process_id={index}").exists():
        await asyncio.sleep(0.02)
    for _ in range(times):
      task.cancel()
      await asyncio.sleep(0.1)
    with pytest.raises(asyncio.CancelledError):
      await task

  begin = time.monotonic()
  asyncio.run(run())
  return time.monotonic() - begin


def test_a_second_signal_kills_at_once(scripts):
  assert _run_and_cancel(scripts, 2, grace_seconds=60) < 20
  assert scripts.codes == {"trainer-0": -9, "trainer-1": -9}


@pytest.mark.parametrize("starting_seconds", [0.0, 0.2])
def test_what_does_not_end_in_time_is_killed(scripts, starting_seconds):
  start = scripts.start

  async def start_slowly(*arguments):
    process = await start(*arguments)
    await asyncio.sleep(starting_seconds)
    return process

  scripts.start = start_slowly
  _run_and_cancel(scripts, 1, grace_seconds=0.3)
  assert scripts.codes == {"trainer-0": -9, "trainer-1": -9}
