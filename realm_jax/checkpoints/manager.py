"""Orbax checkpoints with named items, written by the trainer alone.

    MODEL_DIR/checkpoints/<step>/{retriever,reader,optimizer,loop,vectors}

Each item can be restored by itself: the index builder reads `retriever` and,
of a run that keeps its own index, `vectors`. A step's directory appears by one
rename (or, on an object store, by a commit file), so a trainer that is killed
leaves no partial checkpoint.

A save runs in the background. Orbax raises its error when it is next waited
for, and has then forgotten the arrays. So the store keeps them on the host
until the checkpoint is committed, and saves them again after a failure.
"""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jaxtyping import PyTree
from orbax.checkpoint import checkpoint_managers

from realm_jax.checkpoints import best
from realm_jax.files.object_store.remote import is_remote

ITEMS = ("retriever", "reader", "optimizer", "loop", "vectors")
FOLDER = "checkpoints"

_Result = TypeVar("_Result")
_Leaf = jax.Array | np.ndarray | jax.ShapeDtypeStruct
_MAX_LISTINGS = 10
_SECONDS_BETWEEN_LISTINGS = 0.2
# Pauses between the tries to write a checkpoint, and those of a process that
# was told to end.
_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
_HURRIED_PAUSES_SECONDS = (1.0, 1.0)
# Time after the first failure from which on nothing is tried again: a store
# that does not answer makes each try long.
_PATIENCE_SECONDS = 45.0
_REMINDER_SECONDS = 30.0
# Characters of an error that are shown.
_MAX_REASON = 150


class CheckpointError(ValueError):
  """A checkpoint that does not exist or does not fit."""


class UnreadableCheckpointError(CheckpointError):
  """A checkpoint that is damaged or partly removed."""


class CheckpointNotWrittenError(CheckpointError):
  """A checkpoint that could not be written, however often it was tried."""


class _Best(checkpoint_managers.PreservationPolicy):
  """Keeps the checkpoints that the run's `best.json` names at each save."""

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


@dataclasses.dataclass
class _Unwritten:
  """A checkpoint that is not committed yet.

  Attributes:
    items: Its trees, whose arrays are on the host.
    failures: Number of times that it could not be written.
    error: Why the last try failed; None while it is being written.
    retry_at: Time of the next try, by the monotonic clock.
    give_up_at: Time after which there is no other.
    remind_at: Time to say that it is still being written.
  """

  step: int
  items: Mapping[str, PyTree]
  failures: int = 0
  error: Exception | None = None
  retry_at: float = 0.0
  give_up_at: float = math.inf
  remind_at: float = dataclasses.field(
    default_factory=lambda: time.monotonic() + _REMINDER_SECONDS
  )


class _HostArray:
  """A copy of an array on the host, from which it is made again."""

  def __init__(self, array: jax.Array):
    self._shape, self._sharding = array.shape, array.sharding
    self._parts: dict[str, np.ndarray] = {}
    for shard in array.addressable_shards:
      # Devices may have the same part.
      if (index := str(shard.index)) not in self._parts:
        self._parts[index] = np.asarray(shard.data)

  def to_devices(self) -> jax.Array:
    """Returns an array with the values and the sharding of the first."""
    return jax.make_array_from_callback(
      self._shape, self._sharding, lambda index: self._parts[str(index)]
    )


class CheckpointStore:
  """The checkpoints of one MODEL_DIR.

  Args:
    model_dir: Directory of the run.
    keep: Number of latest checkpoints to keep. Step 0, from which the first
      generation is built, is kept as well, and so is the best checkpoint.
    read_only: Whether this process only reads. It sees steps that the trainer
      adds meanwhile, and waits for no other process. Those that write do so
      together, all at the same time.
  """

  def __init__(
    self, model_dir: epath.PathLike, *, keep: int = 3, read_only: bool = True
  ):
    directory = epath.Path(model_dir) / FOLDER
    # Orbax takes no relative path.
    self.directory = directory if is_remote(model_dir) else directory.absolute()
    self._read_only = read_only
    self._manager: ocp.CheckpointManager | None = None
    self._keep = keep
    self._unwritten: _Unwritten | None = None
    self._pauses: Sequence[float] = _PAUSES_SECONDS

  def _open(self) -> ocp.CheckpointManager:
    if self._manager is None:
      self._manager = _listed(self._make_manager)
    return self._manager

  def _make_manager(self) -> ocp.CheckpointManager:
    logging.get_absl_logger().addFilter(_is_news)
    policy = checkpoint_managers.AnyPreservationPolicy(
      [
        checkpoint_managers.LatestN(self._keep),
        checkpoint_managers.CustomSteps([0]),
        _Best(self.directory.parent),
      ]
    )
    return ocp.CheckpointManager(
      self.directory,
      item_names=ITEMS,
      item_handlers={name: ocp.StandardCheckpointHandler() for name in ITEMS},
      options=ocp.CheckpointManagerOptions(
        read_only=self._read_only,
        # What orbax would set for readers by itself, with a warning each.
        save_interval_steps=0 if self._read_only else 1,
        create=not self._read_only,
        preservation_policy=policy,
        save_decision_policy=checkpoint_managers.FixedIntervalPolicy(1),
        enable_async_checkpointing=not self._read_only,
        # Where directories are made in the background and that fails, threads
        # wait for them for minutes, and the process with them.
        async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
        multiprocessing_options=_processes(alone=self._read_only),
      ),
    )

  def steps(self) -> list[int]:
    """Returns the committed steps, in order; none without a directory."""
    if not self.directory.exists():
      return []
    manager = self._open()
    if self._read_only:
      _listed(manager.reload)
    return sorted(manager.all_steps())

  def latest(self) -> int:
    """Returns the last committed step.

    Raises:
      CheckpointError: There is none.
    """
    steps = self.steps()
    if not steps:
      raise CheckpointError(
        f"{self.directory} holds no checkpoint; want a MODEL_DIR that "
        "`realm_jax.train` has written to"
      )
    return steps[-1]

  def items(self, step: int) -> frozenset[str]:
    """Returns the names of a step's items."""
    if step not in (steps := self.steps()):
      raise CheckpointError(
        f"{self.directory} has no checkpoint of step {step}; it has "
        f"{steps or 'none'}"
      )
    folder = self._folder(step)
    return frozenset(p.name for p in folder.iterdir() if p.name in ITEMS)

  def _folder(self, step: int) -> epath.Path:
    return self._open()._get_read_step_directory(step, self.directory)

  def save(self, step: int, items: Mapping[str, PyTree]) -> None:
    """Copies trees of arrays off the devices; writes them in the background.

    A save that fails is repeated by `check` and `wait`. The one before is
    waited for; after `hurry`, one that has failed is given up.

    Raises:
      CheckpointNotWrittenError: The one before could not be written.
    """
    if self._pauses is _PAUSES_SECONDS:
      self.wait()
    elif self._unwritten is not None:
      try:
        self._finish()
      except CheckpointNotWrittenError as error:
        logging.warning("%s", error)
      if (failed := self._unwritten) is not None:
        logging.warning(
          "%s; checkpoint %d is saved instead", self._what(failed), step
        )
    copies = jax.tree.map(
      lambda leaf: _HostArray(leaf) if isinstance(leaf, jax.Array) else leaf,
      dict(items),
    )
    self._unwritten = _Unwritten(step, copies)
    self._begin(self._unwritten, items)

  def _begin(self, unwritten: _Unwritten, items: Mapping[str, PyTree]) -> None:
    """Starts to write a checkpoint in the background."""
    trees = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
    try:
      self._open().save(unwritten.step, args=ocp.args.Composite(**trees))
    except Exception as error:
      # Orbax, TensorStore and the clients of object stores have no common one.
      self._note_failure(unwritten, error)

  def _finish(self) -> None:
    """Waits until the current try has ended, and notes how."""
    unwritten = self._unwritten
    if unwritten is None or unwritten.error is not None:
      return
    try:
      self._open().wait_until_finished()
    except Exception as error:
      self._note_failure(unwritten, error)
    else:
      self._unwritten = None

  def _retry(self, unwritten: _Unwritten) -> None:
    unwritten.error = None
    try:
      manager = self._open()
      manager.reload()
      if unwritten.step in manager.all_steps():
        # What failed came after the commit.
        self._unwritten = None
        return
      items = jax.tree.map(
        lambda leaf: (
          leaf.to_devices() if isinstance(leaf, _HostArray) else leaf
        ),
        unwritten.items,
      )
    except Exception as error:
      self._note_failure(unwritten, error)
      return
    self._begin(unwritten, items)

  def _note_failure(self, unwritten: _Unwritten, error: Exception) -> None:
    """Plans the next try.

    Raises:
      CheckpointNotWrittenError: That was the last one.
    """
    unwritten.error = error
    unwritten.failures += 1
    self._remove_partial(unwritten.step)
    # Several processes would have to agree on another try. Orbax's barriers
    # do not get over a process that has left one of them.
    tries = 1 if jax.process_count() > 1 else 1 + len(self._pauses)
    now = time.monotonic()
    unwritten.give_up_at = min(unwritten.give_up_at, now + _PATIENCE_SECONDS)
    if unwritten.failures >= tries or now >= unwritten.give_up_at:
      self._unwritten = None
      raise CheckpointNotWrittenError(
        f"{self._what(unwritten)}, tried {unwritten.failures} times; free some "
        "space or make the store reachable, and start the run again, which "
        "continues from its last checkpoint"
      ) from error
    pause = self._pauses[unwritten.failures - 1]
    unwritten.retry_at = now + pause
    logging.warning("%s; trying again in %.0f s", self._what(unwritten), pause)

  def _what(self, unwritten: _Unwritten) -> str:
    error = unwritten.error
    reason = " ".join(str(error).split()) or type(error).__name__
    # TensorStore's end with the cause, and then with what belongs to it.
    reason = reason.partition(" [")[0]
    if len(reason) > _MAX_REASON:
      reason = f"…{reason[-_MAX_REASON:]}"
    return (
      f"checkpoint {self.directory}/{unwritten.step} could not be written "
      f"({reason})"
    )

  def _remove_partial(self, step: int) -> None:
    """Frees the disk of what a failed try has written.

    An object store has no temporary folders: there a folder without a commit
    file is no checkpoint, and the next try replaces it.
    """
    if is_remote(self.directory) or jax.process_index() > 0:
      return
    for partial in Path(self.directory).glob(f"{step}.*"):
      shutil.rmtree(partial, ignore_errors=True)

  def check(self) -> None:
    """Looks, without waiting, how the last save is; repeats one that failed.

    Raises:
      CheckpointNotWrittenError: It could not be written, however often tried.
    """
    if (unwritten := self._unwritten) is None:
      return
    if unwritten.error is None:
      if self._open().is_saving_in_progress():
        if (now := time.monotonic()) >= unwritten.remind_at:
          unwritten.remind_at = now + _REMINDER_SECONDS
          logging.info(
            "checkpoint %s/%d is still being written",
            self.directory,
            unwritten.step,
          )
        return
      self._finish()
    failed = self._unwritten
    if failed is not None and time.monotonic() >= failed.retry_at:
      self._retry(failed)

  def hurry(self) -> None:
    """Repeats failed saves for few seconds only, as this process must end."""
    self._pauses = _HURRIED_PAUSES_SECONDS
    if self._unwritten is not None:
      self._unwritten.retry_at = 0.0

  def restore(
    self,
    step: int,
    *,
    items: Sequence[str],
    like: Mapping[str, PyTree[_Leaf]] | None = None,
  ) -> dict[str, PyTree]:
    """Restores named items.

    An item must fit its tree of `like`: abstract arrays, with shardings. One
    without such a tree is restored as numpy arrays.

    Raises:
      CheckpointError: There is no such step or item, a shape differs, or a
        file cannot be read.
    """
    where = f"{self.directory}/{step}"
    try:
      present = self.items(step)
    except OSError as error:
      raise UnreadableCheckpointError(
        f"{where} was removed meanwhile: {error}"
      ) from error
    if missing := set(items) - present:
      raise UnreadableCheckpointError(
        f"checkpoint {step} of {self.directory} has no {sorted(missing)}; it "
        f"has {sorted(present)}"
      )
    manager, folder = self._open(), self._folder(step)
    targets = {}
    try:
      for name in items:
        stored = _metadata(folder / name)
        wanted = (like or {}).get(name)
        if wanted is None:
          wanted = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), stored)
        _require_fit(name, stored, wanted, where)
        targets[name] = ocp.args.StandardRestore(wanted)
      restored = manager.restore(step, args=ocp.args.Composite(**targets))
      return {name: restored[name] for name in items}
    except CheckpointError:
      raise
    except Exception as error:
      # For an array that cannot be read, orbax raises a bare Exception.
      raise UnreadableCheckpointError(
        f"{', '.join(items)} of {where} cannot be read, "
        f"damaged or removed meanwhile: {error.__cause__ or error}"
      ) from error

  def shapes(self, step: int, item: str) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of an item's arrays, by their paths."""
    return _shapes(_metadata(self._folder(step) / item))

  def restore_arrays(
    self, step: int, item: str, *, paths: Sequence[str]
  ) -> dict[str, np.ndarray]:
    """Restores single arrays of an item, which are paths of `shapes`.

    Raises:
      UnreadableCheckpointError: A file cannot be read.
    """
    folder = self._folder(step) / item
    wanted = set(paths)

    def chosen(path: Sequence[Any], stored: Any) -> np.ndarray | None:
      is_wanted = _path_text(path) in wanted
      return np.empty(stored.shape, stored.dtype) if is_wanted else None

    tree = jax.tree_util.tree_map_with_path(chosen, _metadata(folder))
    as_numpy = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree
    )
    options = ocp.args.PyTreeRestore(
      tree, restore_args=as_numpy, partial_restore=True
    )
    try:
      with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        restored = handler.restore(folder, args=options)
    except Exception as error:
      # As in `restore`.
      raise UnreadableCheckpointError(
        f"{item} of {self.directory}/{step} cannot be read, damaged or removed "
        f"meanwhile: {error.__cause__ or error}"
      ) from error
    leaves = jax.tree_util.tree_leaves_with_path(restored)
    return {_path_text(path): np.asarray(leaf) for path, leaf in leaves}

  def wait(self) -> None:
    """Waits until the last save is committed, and repeats it if it failed.

    Raises:
      CheckpointNotWrittenError: It could not be written, however often tried.
    """
    self._finish()
    while (failed := self._unwritten) is not None:
      time.sleep(max(0.0, failed.retry_at - time.monotonic()))
      self._retry(failed)
      self._finish()

  def close(self) -> None:
    """Waits for a save that is being written, and ends the threads."""
    if self._manager is None:
      return
    with contextlib.suppress(CheckpointNotWrittenError):
      self._finish()
    if self._unwritten is not None:
      logging.error("%s", self._what(self._unwritten))
    self._manager.close()
    self._manager = self._unwritten = None


def locate(path: epath.PathLike) -> tuple[CheckpointStore, int]:
  """Opens a MODEL_DIR's latest checkpoint, or MODEL_DIR/checkpoints/STEP.

  STEP is a number, or `best` for the checkpoint that an evaluation has named.

  Raises:
    CheckpointError: The path is neither.
  """
  path = epath.Path(path)
  if path.parent.name == FOLDER and path.name == best.NAME:
    return CheckpointStore(path.parent.parent), best_step(path.parent.parent)
  if path.parent.name == FOLDER and path.name.isdigit():
    return CheckpointStore(path.parent.parent), int(path.name)
  if not (path / FOLDER).exists():
    raise CheckpointError(
      f"{path} is not a checkpoint; want a MODEL_DIR with a {FOLDER} folder, "
      f"or one of its steps, MODEL_DIR/{FOLDER}/STEP"
    )
  store = CheckpointStore(path)
  return store, store.latest()


def best_step(model_dir: epath.PathLike) -> int:
  """Returns the step of a run's best checkpoint.

  Raises:
    CheckpointError: No evaluation has named one.
  """
  try:
    named = best.read_best(model_dir)
  except ValueError as error:
    raise CheckpointError(str(error)) from error
  if named is None or named.step is None:
    raise CheckpointError(
      f"{model_dir} has no best checkpoint yet; name a step, or let "
      f"`realm_jax.evaluate --follow` write {best.FILE}"
    )
  return named.step


def _processes(*, alone: bool) -> ocp.options.MultiprocessingOptions:
  """Returns the processes that orbax's barriers wait for: this one, or all."""
  if not alone:
    return ocp.options.MultiprocessingOptions()
  index = jax.process_index()
  return ocp.options.MultiprocessingOptions(
    primary_host=index, active_processes={index}
  )


def _is_news(record: Any) -> bool:
  """Drops a warning of orbax's which says that a reader only reads."""
  return not str(record.msg).startswith("Given directory is read only")


def _listed(list_steps: Callable[[], _Result]) -> _Result:
  """Lists the steps, again if the trainer is removing one meanwhile."""
  for _ in range(_MAX_LISTINGS - 1):
    try:
      return list_steps()
    # The latter is what a folder becomes that has no objects any more.
    except (FileNotFoundError, NotADirectoryError):
      time.sleep(_SECONDS_BETWEEN_LISTINGS)
  return list_steps()


def _metadata(item: epath.Path) -> PyTree:
  # `item_metadata` of the manager would read that of all items.
  with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
    return handler.metadata(item).tree


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a tree's leaves by their paths."""
  return {
    _path_text(path): tuple(leaf.shape)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def _path_text(path: Sequence[Any]) -> str:
  return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def _require_fit(
  name: str, stored: PyTree, wanted: PyTree[_Leaf], where: str
) -> None:
  has, wants = _shapes(stored), _shapes(wanted)
  problems = [
    f"{path}: checkpoint has {has.get(path, 'nothing')}, model wants "
    f"{wants.get(path, 'nothing')}"
    for path in sorted(has.keys() | wants.keys())
    if has.get(path) != wants.get(path)
  ]
  if problems:
    shown = "\n  ".join(problems[:6])
    raise CheckpointError(
      f"{name} of {where} does not fit this model ({len(problems)} "
      f"differences); use the gin model file it was trained with\n  {shown}"
    )
