"""Orbax checkpoints with named items, written by the trainer alone.

    MODEL_DIR/checkpoints/<step>/{retriever,reader,optimizer,loop,vectors}

Each item can be restored by itself: the index builder reads `retriever` and,
of a run that keeps its own index, `vectors`. A step's directory appears by one
rename (or, on an object store, by a commit file), so a trainer that is killed
leaves no partial checkpoint.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jaxtyping import PyTree, UInt8

from realm_jax.checkpoints import best
from realm_jax.checkpoints.saving import (
  FOLDER,
  ITEMS,
  BackgroundSaves,
  CheckpointError,
)

_Leaf = jax.Array | np.ndarray | jax.ShapeDtypeStruct
# The item `loop`, a flat dictionary, as it is saved and restored.
LoopItem = dict[str, Any]
_NO_GENERATION = -1
_MAX_LISTINGS = 10
_SECONDS_BETWEEN_LISTINGS = 0.2


class UnreadableCheckpointError(CheckpointError):
  """A checkpoint that is damaged or partly removed."""


class CheckpointStore(BackgroundSaves):
  """The checkpoints of one MODEL_DIR, also while a trainer adds to them."""

  def steps(self) -> list[int]:
    """Returns the committed steps, in order; none without a directory."""
    for _ in range(_MAX_LISTINGS):
      # The trainer may be removing one. The latter is what a folder becomes
      # that has no objects any more.
      with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(ocp.utils.checkpoint_steps(self.directory))
      time.sleep(_SECONDS_BETWEEN_LISTINGS)
    return sorted(ocp.utils.checkpoint_steps(self.directory))

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
    """Returns the names of a step's items.

    Raises:
      CheckpointError: There is no such step.
      OSError: It is being removed.
    """
    if step not in (steps := self.steps()):
      raise CheckpointError(
        f"{self.directory} has no checkpoint of step {step}; it has "
        f"{steps or 'none'}"
      )
    names = (path.name for path in self._folder(step).iterdir())
    return frozenset(names) & frozenset(ITEMS)

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
    with (
      self._reading(", ".join(items), step),
      contextlib.closing(ocp.StandardCheckpointHandler()) as handler,
    ):
      present = self.items(step)
      if missing := set(items) - present:
        raise UnreadableCheckpointError(
          f"checkpoint {step} of {self.directory} has no {sorted(missing)}; it "
          f"has {sorted(present)}"
        )
      restored = {}
      for name in items:
        folder = self._folder(step) / name
        stored = handler.metadata(folder).tree
        wanted = (like or {}).get(name)
        if wanted is None:
          wanted = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), stored)
        _require_fit(f"{name} of {self._folder(step)}", stored, wanted)
        target = ocp.args.StandardRestore(wanted)
        restored[name] = handler.restore(folder, args=target)
      return restored

  def restore_arrays(
    self, step: int, item: str, wanted: Callable[[str], bool]
  ) -> dict[str, np.ndarray]:
    """Restores by their paths the arrays of an item whose path is wanted.

    Raises:
      UnreadableCheckpointError: A file cannot be read.
    """
    folder = self._folder(step) / item

    def target(path: Sequence[Any], stored: Any) -> np.ndarray | None:
      is_wanted = wanted(_path_text(path))
      return np.empty(stored.shape, stored.dtype) if is_wanted else None

    with (
      self._reading(item, step),
      contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler,
    ):
      stored: PyTree = handler.metadata(folder).tree
      tree = jax.tree_util.tree_map_with_path(target, stored)
      restore_args = ocp.checkpoint_utils.construct_restore_args(tree)
      options = ocp.args.PyTreeRestore(
        tree, restore_args=restore_args, partial_restore=True
      )
      restored = handler.restore(folder, args=options)
    leaves = jax.tree_util.tree_leaves_with_path(restored)
    return {_path_text(path): np.asarray(leaf) for path, leaf in leaves}

  @contextlib.contextmanager
  def _reading(self, what: str, step: int) -> Iterator[None]:
    """Raises an `UnreadableCheckpointError` for what orbax may raise."""
    try:
      yield
    except CheckpointError:
      raise
    except Exception as error:
      # For an array that cannot be read, orbax raises a bare Exception.
      raise UnreadableCheckpointError(
        f"{what} of {self._folder(step)} cannot be read, damaged or removed "
        f"meanwhile: {error.__cause__ or error}"
      ) from error

  def loop_item(self, step: int) -> LoopItem:
    """Returns the item `loop` as numpy arrays; empty where there is none.

    Raises:
      CheckpointError: There is no such step, or it cannot be read.
    """
    if "loop" not in self.items(step):
      return {}
    return self.restore(step, items=("loop",))["loop"]

  def require_vocabulary(self, step: int, sha256: str) -> None:
    """Refuses a checkpoint that was trained with another vocabulary.

    Another one of the same size has the same shapes. A checkpoint that no
    trainer wrote may have no digest, and is accepted.

    Raises:
      CheckpointError: The digests differ.
    """
    own = self.loop_item(step).get("vocabulary")
    if own is not None and not np.array_equal(own, digest_bytes(sha256)):
      raise CheckpointError(
        f"checkpoint {step} of {self.directory} was trained over another "
        "vocabulary than this corpus has; build the corpus with --vocab=VOCAB "
        "of the corpus that it was trained on"
      )

  def has_vectors_of(self, step: int, fingerprint: str) -> bool:
    """Returns whether a step has the vectors of all blocks of a corpus version.

    The `fingerprint` of the version is a SHA-256 in hexadecimal.
    """
    if "vectors" not in self.items(step):
      return False
    own = self.loop_item(step).get("vectors_corpus")
    return own is not None and np.array_equal(own, digest_bytes(fingerprint))


def loop_record(generation: int | None, **digests: str) -> LoopItem:
  """Returns what the item `loop` says to others than the trainer.

  Args:
    generation: Generation in use; None in a run without generations.
    digests: SHA-256 in hexadecimal, of the `vocabulary` and, where there is an
      item `vectors`, of the corpus version that it is of (`vectors_corpus`).
  """
  step = _NO_GENERATION if generation is None else generation
  record = {name: digest_bytes(sha256) for name, sha256 in digests.items()}
  return {"generation": np.int64(step), **record}


def recorded_generation(item: LoopItem) -> int | None:
  """Returns the generation that an item `loop` records, if any."""
  step = int(item.get("generation", _NO_GENERATION))
  return None if step == _NO_GENERATION else step


def digest_bytes(sha256: str) -> UInt8[np.ndarray, "32"]:
  """Returns the bytes of a hexadecimal SHA-256."""
  return np.frombuffer(bytes.fromhex(sha256), np.uint8)


def locate(path: epath.PathLike) -> tuple[CheckpointStore, int]:
  """Opens a MODEL_DIR's latest checkpoint, or MODEL_DIR/checkpoints/STEP.

  STEP is a number, or `best` for the checkpoint that an evaluation has named.

  Raises:
    CheckpointError: The path is neither.
  """
  path = epath.Path(path)
  model_dir = path.parent.parent
  if path.parent.name == FOLDER and path.name == best.NAME:
    return CheckpointStore(model_dir), best_step(model_dir)
  if path.parent.name == FOLDER and path.name.isdigit():
    return CheckpointStore(model_dir), int(path.name)
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


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a tree's leaves by their paths."""
  return {
    _path_text(path): tuple(leaf.shape)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def _path_text(path: Sequence[Any]) -> str:
  return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def _require_fit(what: str, stored: PyTree, wanted: PyTree[_Leaf]) -> None:
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
      f"{what} does not fit this model ({len(problems)} differences); use the "
      f"gin model file it was trained with\n  {shown}"
    )
