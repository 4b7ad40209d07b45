"""The decisions of a run, alone and with what other processes know."""

import threading

import pytest

from realm_jax.training.decisions import Decisions, _decide_step


def _decisions(num_steps=10, every=4):
  preempted = threading.Event()
  decisions = Decisions(preempted, num_steps=num_steps, save_every_steps=every)
  return decisions, preempted


def _facts(generation=None, crashed=None, preempted=False, **metrics):
  return {
    "generation": generation,
    "crashed": crashed,
    "metrics": metrics,
    "preempted": preempted,
  }


def test_a_checkpoint_is_due_every_so_many_steps_and_at_the_end():
  decisions, _ = _decisions()
  saves = [step for step in range(1, 11) if decisions.after_step(step)[0]]
  assert saves == [4, 8, 10]


def test_a_preempted_run_saves_and_stops_after_any_step():
  decisions, preempted = _decisions()
  assert decisions.after_step(3) == (False, False)
  assert not decisions.stop_requested()
  preempted.set()
  assert decisions.after_step(3) == (True, True)
  assert decisions.stop_requested()


def test_one_process_decides_by_what_it_knows():
  decisions, _ = _decisions()
  assert decisions.generation(3) == 3
  assert decisions.generation(None) is None
  decision = decisions.of_step(
    5, generation=3, crashed="it died", metrics={"recall": 0.5}
  )
  assert decision.generation == 3
  assert decision.crashed == "it died"
  assert decision.metrics == {"recall": 0.5}


@pytest.mark.parametrize(
  ("loaded", "used"),
  [
    ([500, None, None], None),
    ([500, 500, None], None),
    ([500, 500, 500], 500),
    # The third has loaded what was wanted before.
    ([1000, 500, 500], None),
    ([None, None, None], None),
  ],
)
def test_a_generation_is_used_once_all_have_loaded_it(loaded, used):
  decided = _decide_step([_facts(generation=step) for step in loaded])
  assert decided["load"] == loaded[0]
  assert decided["generation"] == used


def test_one_preempted_process_stops_all():
  assert not _decide_step([_facts(), _facts()])["stop"]
  assert _decide_step([_facts(), _facts(preempted=True)])["stop"]


def test_one_crashed_index_makes_all_fall_back_and_is_named():
  crashed = _decide_step([_facts(), _facts(crashed="it died")])["crashed"]
  assert crashed == "process 1: it died"


def test_metrics_of_the_hosts_are_averaged():
  facts = [_facts(recall=0.25), _facts(recall=0.75)]
  assert _decide_step(facts)["metrics"] == {"recall": 0.5}
