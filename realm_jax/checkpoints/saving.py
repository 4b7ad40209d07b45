"""Checkpoints are written in the background, and again after a failure.

Orbax raises the error of a save when it is next waited for, and has then
forgotten the arrays. So a thread waits for it, keeps the arrays on the host
until the checkpoint is committed, and saves them again after a failure.
"""

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jaxtyping import PyTree
from orbax.checkpoint import checkpoint_managers

from realm_jax.checkpoints import best
from realm_jax.storage.paths import is_remote

ITEMS = ("retriever", "reader", "posterior", "optimizer", "loop", "vectors")
FOLDER = "checkpoints"

# Pauses between the tries to write a checkpoint, and those of a process that
# was told to end.
_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
_HURRIED_PAUSES_SECONDS = (1.0, 1.0)
# Time after the first failure from which on nothing is tried again: a store
# that does not answer makes each try long.
_PATIENCE_SECONDS = 45.0
# Characters of an error that are shown.
_MAX_REASON = 150


class CheckpointError(ValueError):
  """A checkpoint that does not exist or does not fit."""


class CheckpointNotWrittenError(CheckpointError):
  """A checkpoint that could not be written, however often it was tried."""


class BackgroundSaves:
  """What writes the checkpoints of one MODEL_DIR.

  The processes of a trainer write together, all at the same time.

  Args:
    model_dir: Directory of the run.
    keep: Number of latest checkpoints to keep. Step 0, from which the first
      generation is built, is kept as well, and so is the best checkpoint.

  Attributes:
    directory: Folder of the checkpoints.
  """

  def __init__(self, model_dir: epath.PathLike, *, keep: int = 3):
    directory = epath.Path(model_dir) / FOLDER
    # Orbax takes no relative path.
    self.directory = directory if is_remote(model_dir) else directory.absolute()
    self._keep = keep
    self._manager: ocp.CheckpointManager | None = None
    # Writes all checkpoints: to each thread, orbax raises an error of its own.
    self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
    self._saving: Future[None] | None = None
    self._is_hurried = self._is_given_up = False
    # Ends the pause before the next try.
    self._wake = threading.Event()

  def _open(self) -> ocp.CheckpointManager:
    """Returns what writes checkpoints, and removes old ones."""
    if self._manager is None:
      self._manager = ocp.CheckpointManager(
        self.directory,
        item_names=ITEMS,
        options=ocp.CheckpointManagerOptions(
          preservation_policy=checkpoint_managers.AnyPreservationPolicy(
            [
              checkpoint_managers.LatestN(self._keep),
              checkpoint_managers.CustomSteps([0]),
              _Best(self.directory.parent),
            ]
          ),
          # Where directories are made in the background and that fails, threads
          # wait for them for minutes, and the process with them.
          async_options=ocp.AsyncOptions(
            create_directories_asynchronously=False
          ),
        ),
      )
    return self._manager

  def _folder(self, step: int) -> epath.Path:
    return self.directory / str(step)

  def save(self, step: int, items: Mapping[str, PyTree]) -> None:
    """Copies trees of arrays off the devices; writes them in the background.

    A save that fails is repeated. The one before is waited for; after `hurry`,
    one that has failed is given up.

    Raises:
      CheckpointNotWrittenError: The one before could not be written.
    """
    if self._is_hurried:
      self._give_up()
    else:
      self.wait()
    copies = None
    # Several processes would have to agree on another try. Orbax's barriers do
    # not get over a process that has left one of them.
    if jax.process_count() == 1:
      copies = jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf,
        dict(items),
      )
    error = self._thread.submit(self._begin, step, items).result()
    self._saving = self._thread.submit(self._finish, step, copies, error)

  def check(self) -> None:
    """Looks, without waiting, whether the last save has failed.

    Raises:
      CheckpointNotWrittenError: It could not be written, however often tried.
    """
    if self._saving is not None and self._saving.done():
      self.wait()

  def wait(self) -> None:
    """Waits until the last save is committed, and repeats it if it failed.

    Raises:
      CheckpointNotWrittenError: It could not be written, however often tried.
    """
    saving, self._saving = self._saving, None
    if saving is not None:
      if self._is_hurried:
        self._wake.set()
      saving.result()

  def hurry(self) -> None:
    """Repeats failed saves for few seconds only, as this process must end."""
    self._is_hurried = True

  def close(self) -> None:
    """Waits for a save that is being written, and ends the threads."""
    self._give_up()
    if self._manager is not None:
      # An interpreter that shuts down takes no more work, and must not bury the
      # error with which it ends.
      with contextlib.suppress(RuntimeError):
        self._thread.submit(self._manager.close).result()
      self._manager = None
    self._thread.shutdown()

  def _give_up(self) -> None:
    """Waits until the current try has ended; there is no other after it."""
    self._is_given_up = True
    self._wake.set()
    try:
      self.wait()
    except CheckpointNotWrittenError as error:
      logging.error("%s", error)
    self._is_given_up = False
    self._wake.clear()

  def _begin(
    self, step: int, items: Mapping[str, PyTree], *, again: bool = False
  ) -> Exception | None:
    """Starts to write a checkpoint; returns the error if that fails."""
    trees = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
    try:
      manager = self._open()
      if again:
        # What failed may have come after the commit: orbax saves no step twice.
        manager.reload()
      manager.save(step, args=ocp.args.Composite(**trees))
    except Exception as error:
      # Orbax, TensorStore and the clients of object stores have no common one.
      return error
    return None

  def _finish(
    self,
    step: int,
    copies: Mapping[str, PyTree] | None,
    error: Exception | None,
  ) -> None:
    """Waits until a checkpoint is committed, and repeats a save that failed.

    `error` is that of `_begin`. Without `copies`, there is no other try.
    """
    folder, failures, give_up_at = self._folder(step), 0, math.inf
    while True:
      try:
        if error is None:
          return self._open().wait_until_finished()
      except Exception as raised:
        error = raised
      failures += 1
      # An object store has no temporary folders: there a folder without a
      # commit file is no checkpoint, and the next try replaces it.
      if not is_remote(self.directory) and jax.process_index() == 0:
        for partial in Path(self.directory).glob(f"{step}.*"):
          shutil.rmtree(partial, ignore_errors=True)
      pauses = _HURRIED_PAUSES_SECONDS if self._is_hurried else _PAUSES_SECONDS
      now = time.monotonic()
      give_up_at = min(give_up_at, now + _PATIENCE_SECONDS)
      failure = f"checkpoint {folder} could not be written ({_reason(error)})"
      is_last = copies is None or failures > len(pauses) or now >= give_up_at
      if not is_last:
        pause = pauses[failures - 1]
        logging.warning("%s; trying again in %.0f s", failure, pause)
        self._wake.wait(pause)
        self._wake.clear()
      if is_last or self._is_given_up:
        raise CheckpointNotWrittenError(
          f"{failure}, tried {failures} times; free some space or make the "
          "store reachable, and start the run again, which continues from its "
          "last checkpoint"
        ) from error
      assert copies is not None
      error = self._begin(step, copies, again=True)


class _Best(checkpoint_managers.PreservationPolicy):
  """Keeps the checkpoints that the run's `best.json` names at each save.

  Orbax's own policy wants the metrics when a checkpoint is saved, and an
  evaluation has them later.
  """

  def __init__(self, model_dir: epath.Path):
    self._model_dir = model_dir

  def should_preserve(
    self,
    checkpoints: Sequence[Any],
    *,
    context: checkpoint_managers.PreservationContext,
  ) -> list[bool]:
    """Returns whether each checkpoint is kept: all if the file is damaged."""
    del context
    try:
      named = best.read_best(self._model_dir)
    except (ValueError, OSError) as error:
      logging.warning("no checkpoint is removed: %s", error)
      return [True] * len(checkpoints)
    kept = frozenset() if named is None else named.kept
    return [checkpoint.step in kept for checkpoint in checkpoints]


def _reason(error: Exception) -> str:
  """Returns the cause of an error of orbax's, in a few words."""
  # TensorStore's end with the cause, and then with what belongs to it.
  text = " ".join(str(error).split()).partition(" [")[0] or type(error).__name__
  return text if len(text) <= _MAX_REASON else f"…{text[-_MAX_REASON:]}"
