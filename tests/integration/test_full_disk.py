"""Runs whose first checkpoint cannot be written for a while."""

import contextlib
import os
import signal
import threading

import pytest

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.training.metric_rows import read_rows
from tests.full_disk import full_disk

pytestmark = [
  pytest.mark.slow,
  pytest.mark.usefixtures("one_device"),
  # Of the writes that orbax abandons once one of them has failed.
  pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# More than all files but those of checkpoints have.
_MAX_BYTES = 16384


@contextlib.contextmanager
def _when_a_save_has_failed(caplog, act):
  """Calls a function in the background, while the block runs."""
  ended = threading.Event()

  def watch():
    while not ended.wait(0.05):
      if "could not be written" in caplog.text:
        act()
        return

  thread = threading.Thread(target=watch)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()


def test_a_run_goes_on_as_if_its_first_save_had_not_failed(
  commands, tmp_path, caplog
):
  plain, disturbed = tmp_path / "plain", tmp_path / "disturbed"
  with commands.index_builder(plain):
    commands.train("pretrain", plain, NUM_STEPS=3)
  caplog.clear()
  with (
    full_disk(_MAX_BYTES) as free,
    _when_a_save_has_failed(caplog, free),
    commands.index_builder(disturbed),
  ):
    commands.train("pretrain", disturbed, NUM_STEPS=3)
  assert "could not be written" in caplog.text
  losses, plain_losses = (
    [row["loss"] for row in read_rows(run)] for run in (disturbed, plain)
  )
  assert losses == plain_losses
  with contextlib.closing(CheckpointStore(disturbed)) as store:
    assert store.steps() == [0, 3]


def test_a_run_that_is_told_to_end_saves_what_could_not_be_written(
  commands, tmp_path, caplog
):

  def free_and_tell():
    free()
    os.kill(os.getpid(), signal.SIGTERM)

  with (
    full_disk(_MAX_BYTES) as free,
    _when_a_save_has_failed(caplog, free_and_tell),
  ):
    # It waits for generation 0, which nobody builds.
    result = commands.train("pretrain", tmp_path, NUM_STEPS=3)
  assert (result.step, result.preempted) == (0, True)
  with contextlib.closing(CheckpointStore(tmp_path)) as store:
    assert store.steps() == [0]
