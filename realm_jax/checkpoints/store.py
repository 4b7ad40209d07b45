"""Orbax checkpoints with named items, written by the trainer alone.

    MODEL_DIR/checkpoints/<step>/{retriever,reader,optimizer,loop,vectors}

There is an item for each component of the run. Items are restored separately:
the index builder reads only `retriever` and, if the run keeps a rolling index,
`vectors`. A step's directory appears by one rename (or, on an object store, by
a commit file), so a killed trainer leaves no partial checkpoint.

Checkpoints are written in the background. A failed save is reported before the
next step, so that the trainer can save again, or end.
"""

import contextlib
import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jaxtyping import PyTree, UInt8
from orbax.checkpoint import checkpoint_managers

from realm_jax.errors import ExitCode, RealmError
from realm_jax.storage.json_files import write_json
from realm_jax.storage.paths import is_remote, read_text

_Leaf = jax.Array | np.ndarray | jax.ShapeDtypeStruct
# The item `loop`, a flat dictionary.
LoopItem = dict[str, Any]
FOLDER = "checkpoints"
# Keys in the item `loop` for digests of two vocabularies: the corpus's, and the
# one of the reader's view.
VOCABULARY, READER_VOCABULARY = "vocabulary", "reader_vocabulary"
# Name that stands for the step of the best checkpoint, which best.json records.
BEST = "best"
_BEST_FILE = "best.json"
# Items that are not components.
_OTHER_ITEMS = {"optimizer", "loop", "vectors"}
_NO_SNAPSHOT = -1
_MAX_LISTINGS = 10
_SECONDS_BETWEEN_LISTINGS = 0.2
# Number of characters of an error to show.
_MAX_REASON = 150


class CheckpointError(RealmError):
  """A checkpoint does not exist, or does not fit."""


class CheckpointNotWrittenError(CheckpointError):
  """A checkpoint could not be written."""

  exit_code = ExitCode.STORE_OUTAGE


class UnreadableCheckpointError(CheckpointError):
  """A checkpoint is damaged or partly removed."""


class CheckpointStore:
  """Reads and writes the checkpoints of one MODEL_DIR.

  Other processes may read while a trainer writes. The processes of a trainer
  write each checkpoint together. Kept are the latest `keep` checkpoints, the
  best one, and step 0, from which the first snapshot is built.

  Attributes:
    directory: Folder of the checkpoints.
    failures: Number of failed saves since the last commit.
  """

  def __init__(self, model_dir: epath.PathLike, *, keep: int = 3):
    directory = epath.Path(model_dir) / FOLDER
    # Orbax takes no relative path.
    self.directory = directory if is_remote(model_dir) else directory.absolute()
    self._keep = keep
    self._manager: ocp.CheckpointManager | None = None
    # A single thread writes, because orbax reports errors per thread.
    self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
    self._saving: Future[None] | None = None
    self.failures = 0

  def steps(self) -> list[int]:
    """Returns the committed steps, in order; empty without a directory."""
    for _ in range(_MAX_LISTINGS):
      # The trainer may be removing a step; in a bucket, a folder without
      # objects does not exist.
      with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(ocp.utils.checkpoint_steps(self.directory))
      time.sleep(_SECONDS_BETWEEN_LISTINGS)
    return sorted(ocp.utils.checkpoint_steps(self.directory))

  def latest(self) -> int:
    """Returns the last committed step.

    Raises:
      CheckpointError: There is no checkpoint.
    """
    steps = self.steps()
    if not steps:
      raise CheckpointError(
        f"{self.directory} holds no checkpoint; want a MODEL_DIR that "
        "`realm_jax.train` has written to"
      )
    return steps[-1]

  def items(self, step: int) -> frozenset[str]:
    """Returns the names of a step's items.

    Raises:
      CheckpointError: There is no such step, or it is being removed.
    """
    if step not in (steps := self.steps()):
      raise CheckpointError(
        f"{self.directory} has no checkpoint of step {step}; it has "
        f"{steps or 'none'}"
      )
    try:
      names = [path.name for path in self._folder(step).iterdir()]
    except OSError as error:
      raise UnreadableCheckpointError(
        f"checkpoint {step} of {self.directory} cannot be read, or is being "
        f"removed: {error}"
      ) from error
    # Other names are files of orbax.
    return frozenset(
      name for name in names if name[0] != "_" and "." not in name
    )

  def components(self, step: int) -> frozenset[str]:
    """Returns the names of a step's components; raises what `items` does."""
    return self.items(step) - _OTHER_ITEMS

  def restore(
    self,
    step: int,
    *,
    items: Sequence[str],
    like: Mapping[str, PyTree[_Leaf]] | None = None,
  ) -> dict[str, PyTree]:
    """Restores named items as NumPy arrays, or as sharded arrays.

    `like` maps an item to a tree of abstract arrays with shardings, which the
    item must fit.

    Raises:
      CheckpointError: There is no such step or item, a shape differs, or a
        file cannot be read.
    """
    present = self.items(step)
    if missing := set(items) - present:
      raise UnreadableCheckpointError(
        f"checkpoint {step} of {self.directory} has no {sorted(missing)}; it "
        f"has {sorted(present)}"
      )
    return {
      name: self._read(step, name, (like or {}).get(name)) for name in items
    }

  def _read(self, step: int, item: str, like: PyTree[_Leaf] | None) -> PyTree:
    folder, stored = self._folder(step) / item, self.stored(step, item)
    with self._handler(folder) as handler:
      if like is None:
        like = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), stored)
      _require_fit(f"{item} of {self._folder(step)}", stored, like)
      restore_args = ocp.checkpoint_utils.construct_restore_args(like)
      args = ocp.args.PyTreeRestore(
        like, restore_args=restore_args, partial_restore=True
      )
      return handler.restore(folder, args=args)

  def stored(self, step: int, item: str) -> PyTree:
    """Returns the shapes and types of an item's arrays.

    Raises:
      CheckpointError: The item cannot be read.
    """
    folder = self._folder(step) / item
    with self._handler(folder) as handler:
      return handler.metadata(folder).tree

  @contextlib.contextmanager
  def _handler(
    self, folder: epath.Path
  ) -> Iterator[ocp.PyTreeCheckpointHandler]:
    """Opens orbax's handler of an item; raises its errors as ours."""
    try:
      with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        yield handler
    except CheckpointError:
      raise
    except Exception as error:
      # For an array that cannot be read, orbax raises a bare Exception.
      raise UnreadableCheckpointError(
        f"{folder} cannot be read, damaged or removed meanwhile: "
        f"{error.__cause__ or error}"
      ) from error

  def loop_item(self, step: int) -> LoopItem:
    """Returns the item `loop` as NumPy arrays; empty if the step has none.

    Raises:
      CheckpointError: There is no such step, or it cannot be read.
    """
    if "loop" not in self.items(step):
      return {}
    return self.restore(step, items=("loop",))["loop"]

  def require_vocabulary(
    self, step: int, sha256: str, *, name: str = VOCABULARY
  ) -> None:
    """Raises a `CheckpointError` if a step was trained with another vocabulary.

    Shapes do not tell vocabularies of the same size apart. A checkpoint that no
    trainer wrote may have no digest, and is accepted.

    Args:
      step: Step of the checkpoint.
      sha256: Digest of the vocabulary of the corpus or of the reader's view.
      name: `VOCABULARY` or `READER_VOCABULARY`, respectively.
    """
    digest = self.loop_item(step).get(name)
    if digest is not None and not np.array_equal(digest, digest_bytes(sha256)):
      what, flag = "vocabulary", "--vocab=VOCAB of the corpus"
      if name == READER_VOCABULARY:
        what, flag = "view", "--view=NAME:spiece.model with the model"
      raise CheckpointError(
        f"checkpoint {step} of {self.directory} was trained over another "
        f"{what} than this corpus has; build the corpus with {flag} that it "
        "was trained on"
      )

  def has_vectors_of(self, step: int, fingerprint: str) -> bool:
    """Returns whether a step has the vectors of a whole corpus version."""
    if "vectors" not in self.items(step):
      return False
    digest = self.loop_item(step).get("vectors_corpus")
    return digest is not None and np.array_equal(
      digest, digest_bytes(fingerprint)
    )

  # --- Writing ----------------------------------------------------------------

  def _open(self) -> ocp.CheckpointManager:
    """Returns orbax's manager, which writes and removes checkpoints."""
    if self._manager is None:
      kept = [
        checkpoint_managers.LatestN(self._keep),
        checkpoint_managers.CustomSteps([0]),
        _Best(self.directory.parent),
      ]
      options = ocp.CheckpointManagerOptions(
        preservation_policy=checkpoint_managers.AnyPreservationPolicy(kept),
        # If creating a directory in the background fails, orbax's threads wait
        # for it for minutes, and so does the process.
        async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
      )
      self._manager = ocp.CheckpointManager(self.directory, options=options)
    return self._manager

  def _folder(self, step: int) -> epath.Path:
    return self.directory / str(step)

  def save(self, step: int, items: Mapping[str, PyTree]) -> None:
    """Copies trees of arrays off the devices; writes them in the background.

    Waits for the save before; if that failed, this save replaces it.
    """
    with contextlib.suppress(CheckpointNotWrittenError):
      self.wait()
    copied = threading.Event()
    self._saving = self._thread.submit(self._write, step, items, copied)
    copied.wait()

  def check(self) -> None:
    """Checks, without waiting, whether the last save has failed.

    Raises:
      CheckpointNotWrittenError: The checkpoint could not be written.
    """
    if self._saving is not None and self._saving.done():
      self._saving.result()

  def wait(self) -> None:
    """Waits until the last save is committed; raises as `check` does."""
    if self._saving is not None:
      self._saving.result()

  def close(self) -> None:
    """Waits for a save in progress, and ends the threads."""
    try:
      self.wait()
    except CheckpointNotWrittenError as error:
      logging.error("%s", error)
    if self._manager is not None:
      # While the interpreter shuts down, orbax cannot submit work. Its error
      # must not hide the one that ends the process.
      with contextlib.suppress(RuntimeError):
        self._thread.submit(self._manager.close).result()
      self._manager = None
    self._thread.shutdown()

  def _write(
    self, step: int, items: Mapping[str, PyTree], copied: threading.Event
  ) -> None:
    """Writes a checkpoint; sets `copied` once the arrays are on the host."""
    trees = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
    try:
      try:
        manager = self._open()
        manager.save(step, args=ocp.args.Composite(**trees))
      finally:
        copied.set()
      manager.wait_until_finished()
      self.failures = 0
    # Orbax, TensorStore and object store clients have no common base error.
    except Exception as error:
      self.failures += 1
      # On an object store there are no temporary folders: a folder without a
      # commit file does not count, and the next attempt replaces it.
      if not is_remote(self.directory) and jax.process_index() == 0:
        for partial in Path(self.directory).glob(f"{step}.*"):
          shutil.rmtree(partial, ignore_errors=True)
      raise CheckpointNotWrittenError(
        f"checkpoint {self._folder(step)} could not be written "
        f"({_reason(error)}); free some space or make the store reachable, and "
        "start the run again, which continues from its last checkpoint"
      ) from error


@dataclasses.dataclass(frozen=True)
class BestCheckpoint:
  """The best checkpoint of a run, as an evaluation writes it to `best.json`.

  Attributes:
    metric: Metric that determines the best checkpoint.
    step: Step of the best checkpoint; None until one has been evaluated.
    value: Metric of the best checkpoint.
    evaluating: Step of the checkpoint that is being evaluated.
  """

  metric: str
  step: int | None = None
  value: float | None = None
  evaluating: int | None = None

  @property
  def kept(self) -> frozenset[int]:
    """Steps of the checkpoints that the trainer keeps."""
    named = (self.step, self.evaluating)
    return frozenset(step for step in named if step is not None)


def read_best(model_dir: epath.PathLike) -> BestCheckpoint | None:
  """Returns the best checkpoint of a run; None if there is no best.json.

  Raises:
    CheckpointError: The file is damaged.
  """
  path = epath.Path(model_dir) / _BEST_FILE
  try:
    best = BestCheckpoint(**json.loads(read_text(path)))
    if all(isinstance(step, int) for step in best.kept):
      return best
    reason = f"a step of {[*best.kept]} is no number"
  except FileNotFoundError:
    return None
  except (TypeError, ValueError) as error:
    reason = str(error)
  raise CheckpointError(
    f"{path} is not what `realm_jax.evaluate --follow` writes: {reason}; "
    "remove it, and follow the run again"
  )


def write_best(model_dir: epath.PathLike, best: BestCheckpoint) -> None:
  """Writes best.json, replacing it atomically."""
  write_json(epath.Path(model_dir) / _BEST_FILE, dataclasses.asdict(best))


class _Best(checkpoint_managers.PreservationPolicy):
  """Keeps the checkpoints in the run's `best.json`, as of each save.

  Orbax's own policy needs the metrics when a checkpoint is saved, before it is
  evaluated.
  """

  def __init__(self, model_dir: epath.Path):
    self._model_dir = model_dir

  def should_preserve(
    self,
    checkpoints: Sequence[Any],
    *,
    context: checkpoint_managers.PreservationContext,
  ) -> list[bool]:
    """Returns whether to keep each checkpoint; all if the file is damaged."""
    del context
    try:
      named = read_best(self._model_dir)
    except (CheckpointError, OSError) as error:
      logging.warning("no checkpoint is removed: %s", error)
      return [True] * len(checkpoints)
    kept = frozenset() if named is None else named.kept
    return [checkpoint.step in kept for checkpoint in checkpoints]


def _reason(error: Exception) -> str:
  """Returns the cause of an orbax error, in a few words."""
  # TensorStore's errors end with the cause, followed by details in brackets.
  text = " ".join(str(error).split()).partition(" [")[0] or type(error).__name__
  return text if len(text) <= _MAX_REASON else f"…{text[-_MAX_REASON:]}"


def loop_record(snapshots: Sequence[int], **digests: str) -> LoopItem:
  """Returns the part of the item `loop` that other processes read.

  It has the snapshots of the next steps, the one in use first, and hexadecimal
  SHA-256 digests: of the `vocabulary` and, if there is an item `vectors`, of
  the corpus version of these vectors (`vectors_corpus`).
  """
  record = {name: digest_bytes(sha256) for name, sha256 in digests.items()}
  # An array without elements cannot be saved.
  steps = np.array(snapshots or [_NO_SNAPSHOT], np.int64)
  return {"snapshots": steps, **record}


def recorded_snapshots(item: LoopItem) -> list[int]:
  """Returns the snapshots that an item `loop` records, the one in use first."""
  steps = np.asarray(item.get("snapshots", [])).tolist()
  return [step for step in steps if step != _NO_SNAPSHOT]


def digest_bytes(sha256: str) -> UInt8[np.ndarray, "32"]:
  """Returns the bytes of a hexadecimal SHA-256."""
  return np.frombuffer(bytes.fromhex(sha256), np.uint8)


def locate(path: epath.PathLike) -> tuple[CheckpointStore, int]:
  """Opens a MODEL_DIR's latest checkpoint, or MODEL_DIR/checkpoints/STEP.

  STEP is a number, or `best` for the best checkpoint of an evaluation.

  Raises:
    CheckpointError: The path is neither of these.
  """
  path = epath.Path(path)
  if path.parent.name == FOLDER:
    model_dir = path.parent.parent
    if path.name == BEST:
      named = read_best(model_dir)
      if named is None or named.step is None:
        raise CheckpointError(
          f"{model_dir} has no best checkpoint yet; name a step, or let "
          f"`realm_jax.evaluate --follow` write {_BEST_FILE}"
        )
      return CheckpointStore(model_dir), named.step
    if path.name.isdecimal():
      return CheckpointStore(model_dir), int(path.name)
  if not (path / FOLDER).exists():
    raise CheckpointError(
      f"{path} is not a checkpoint; want a MODEL_DIR with a {FOLDER} folder, "
      f"or one of its steps, MODEL_DIR/{FOLDER}/STEP"
    )
  store = CheckpointStore(path)
  return store, store.latest()


def _require_fit(what: str, stored: PyTree, like: PyTree[_Leaf]) -> None:
  has, wants = (
    {
      jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    for tree in (stored, like)
  )
  problems = [
    f"{path}: checkpoint has {has.get(path, 'nothing')}, model wants "
    f"{wants.get(path, 'nothing')}"
    for path in sorted(has.keys() | wants.keys())
    if has.get(path) != wants.get(path)
  ]
  if problems:
    shown = "\n  ".join(problems[:6])
    raise CheckpointError(
      f"{what} does not fit this model ({len(problems)} differences); use the "
      "gin model file, the OPTIMIZER and the LORA it was trained with (what "
      "export_weights writes has no adapters), or, if an earlier version wrote "
      "it, which did not stack layers, train or import again\n"
      f"  {shown}"
    )
