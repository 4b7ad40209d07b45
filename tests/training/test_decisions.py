"""The decisions of a run, alone and with what other processes know."""

import pytest

from realm_jax.training.decisions import _decide_step


def _facts(snapshot=None, refused=None, preempted=False, **metrics):
  return {
    "snapshot": snapshot,
    "refused": refused,
    "metrics": metrics,
    "preempted": preempted,
  }


@pytest.mark.parametrize(
  ("loaded", "used"),
  [
    ([500, 500, None], None),
    ([500, 500, 500], 500),
    # The others have loaded what was wanted before.
    ([1000, 500, 500], None),
  ],
)
def test_a_snapshot_is_used_once_all_have_loaded_it(loaded, used):
  decided = _decide_step([_facts(snapshot=step) for step in loaded])
  assert decided["load"] == loaded[0]
  assert decided["snapshot"] == used


def test_one_process_that_is_preempted_or_refuses_speaks_for_all():
  decided = _decide_step([_facts(recall=0.25), _facts(recall=0.75)])
  assert not decided["stop"] and not decided["refused"]
  assert decided["metrics"] == {"recall": 0.5}
  offered, refusing = _facts(snapshot=500), _facts(refused=500)
  assert _decide_step([offered, refusing])["refused"]
  # What it has refused before is not what is offered now.
  assert not _decide_step([_facts(snapshot=1000), refusing])["refused"]
  assert _decide_step([_facts(), _facts(preempted=True)])["stop"]
