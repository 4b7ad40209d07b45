"""The decisions of a run that has one process."""

import threading

from realm_jax.training.decisions import AfterStep, Decisions, LocalDecisions


def _decisions(num_steps=10, every=4):
  preempted = threading.Event()
  decisions = LocalDecisions(
    preempted, num_steps=num_steps, save_every_steps=every
  )
  assert isinstance(decisions, Decisions)
  return decisions, preempted


def test_a_checkpoint_is_due_every_so_many_steps_and_at_the_end():
  decisions, _ = _decisions()
  saves = [step for step in range(1, 11) if decisions.after_step(step).save]
  assert saves == [4, 8, 10]


def test_a_preempted_run_saves_and_stops_after_any_step():
  decisions, preempted = _decisions()
  assert decisions.after_step(3) == AfterStep(save=False, stop=False)
  assert not decisions.stop_requested()
  preempted.set()
  assert decisions.after_step(3) == AfterStep(save=True, stop=True)
  assert decisions.stop_requested()


def test_one_process_decides_by_what_it_knows():
  decisions, _ = _decisions()
  assert decisions.generation(5, 3) == 3
  assert decisions.generation(5, None) is None
  assert decisions.shape_bucket(5, 1) == 1
  assert [decisions.index_crashed(5, crashed) for crashed in (True, False)] == [
    True,
    False,
  ]
