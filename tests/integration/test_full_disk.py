"""Runs whose checkpoints cannot be written for a while."""

import contextlib
import os
import signal
import threading

import pytest

from realm_jax.checkpoints.store import CheckpointNotWrittenError
from realm_jax.errors import ExitCode
from tests.full_disk import full_disk
from tests.integration.commands import checkpoint_steps, losses

pytestmark = [
  pytest.mark.slow,
  pytest.mark.usefixtures("one_device"),
  # Of the writes that orbax abandons once one of them has failed.
  pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
  pytest.mark.filterwarnings("ignore:Error writing persistent compilation"),
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


def test_a_run_whose_first_save_fails_is_resumed_as_if_it_had_not(
  commands, tmp_path
):
  plain, disturbed = tmp_path / "plain", tmp_path / "disturbed"
  with commands.index_builder(plain):
    commands.train("pretrain", plain, NUM_STEPS=3)
  # It would wait for a snapshot that nothing can be built from.
  with (
    full_disk(_MAX_BYTES),
    pytest.raises(CheckpointNotWrittenError, match="free some space") as error,
  ):
    commands.train("pretrain", disturbed, NUM_STEPS=3)
  # On which the supervisor starts the same command again.
  assert error.value.exit_code == ExitCode.STORE_OUTAGE
  with commands.index_builder(disturbed):
    commands.train("pretrain", disturbed, NUM_STEPS=3)
  assert losses(disturbed) == losses(plain)
  assert checkpoint_steps(disturbed) == [0, 3]


def test_a_run_saves_again_three_times_and_ends(commands, tmp_path, caplog):
  with full_disk(_MAX_BYTES), pytest.raises(CheckpointNotWrittenError):
    commands.train("inverse_cloze", tmp_path, NUM_STEPS=500)
  assert caplog.text.count("saving again at this step") == 3
  assert checkpoint_steps(tmp_path) == []


def test_a_run_that_is_told_to_end_after_a_failed_save_saves_its_last_step(
  commands, tmp_path, caplog
):

  def free_and_tell():
    free()
    os.kill(os.getpid(), signal.SIGTERM)

  with (
    full_disk(_MAX_BYTES) as free,
    _when_a_save_has_failed(caplog, free_and_tell),
  ):
    result = commands.train("inverse_cloze", tmp_path, NUM_STEPS=500)
  assert result.preempted
  assert checkpoint_steps(tmp_path)[-1] == result.step
