"""What is said of work units while they run, and when they are stopped."""

import pytest

from launch.cluster import work_units
from launch.cluster.work_units import UnitStatus
from launch.jobs import Job, Schedule


class Recorded:
  """An experiment whose states are given for each time that it is asked."""

  name = "experiments/7"

  def __init__(self, *states):
    self.states = list(states)
    self.stopped = False

  def statuses(self):
    state = self.states.pop(0)
    if isinstance(state, Exception):
      raise state
    return state

  def stop(self):
    self.stopped = True


def _states(trainer, builder="RUNNING", failed=()):
  return [
    UnitStatus(("trainer", "evaluator"), trainer, failed),
    UnitStatus(("builder",), builder),
  ]


def _watch(*states):
  experiment = Recorded(*states)
  code = work_units.watch(experiment, poll_seconds=0)
  assert not experiment.states
  return code, experiment.stopped


def test_changes_are_said_once_and_the_builder_is_stopped_at_the_end(capsys):
  code, stopped = _watch(
    _states("SCHEDULING", "SCHEDULING"),
    _states("RUNNING"),
    _states("RUNNING"),
    _states("COMPLETED"),
  )
  assert (code, stopped) == (0, True)
  assert capsys.readouterr().out.splitlines() == [
    "trainer, evaluator: SCHEDULING",
    "builder: SCHEDULING",
    "trainer, evaluator: RUNNING",
    "builder: RUNNING",
    "trainer, evaluator: COMPLETED",
    "stopping what still runs of experiments/7",
  ]


def test_a_job_that_is_restarted_is_named_and_the_run_goes_on(capsys):
  states = _states("PARTIALLY_FAILED", failed=("trainer",))
  code, _ = _watch(states, _states("RESTARTING"), _states("COMPLETED"))
  assert code == 0
  said = capsys.readouterr().out
  assert "trainer, evaluator: PARTIALLY_FAILED (failed: trainer)\n" in said


@pytest.mark.parametrize(
  ("states", "stopped"),
  [
    (_states("FAILED"), True),
    (_states("STOPPED", "STOPPED"), False),
    # Without the builder, the trainer's index would only grow older.
    (_states("RUNNING", "FAILED"), True),
  ],
)
def test_a_run_that_failed_is_not_left_half(states, stopped):
  assert _watch(states) == (1, stopped)


def test_a_network_that_is_down_ends_nothing(capsys):
  error = OSError("no route")
  assert _watch(error, error, _states("COMPLETED"))[0] == 0
  assert "experiments/7 does not answer: no route" in capsys.readouterr().out


def test_an_experiment_that_never_answers_is_an_error():
  with pytest.raises(OSError, match="no route"):
    _watch(*[OSError("no route")] * 20)


@pytest.mark.parametrize(
  ("schedule", "units"),
  [
    (Schedule.AFTER, [["trainer", "evaluator"], ["builder"]]),
    (Schedule.BESIDE_TO_ITS_END, [["trainer", "evaluator"], ["builder"]]),
    (Schedule.BESIDE, [["trainer"], ["builder"], ["evaluator"]]),
  ],
)
def test_what_goes_on_after_the_trainer_has_a_unit_of_its_own(schedule, units):
  jobs = [
    Job("trainer", (), Schedule.RUN),
    Job("builder", (), Schedule.BESIDE),
    Job("evaluator", (), schedule),
  ]
  divided = work_units.divide(jobs)
  assert [[job.name for job in unit] for unit in divided] == units
