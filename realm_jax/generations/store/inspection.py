"""What lies in a folder of generations, for people."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from etils import epath

from realm_jax.checkpoints.manager import FOLDER, CheckpointStore
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.leases import holders
from realm_jax.generations.store.manifest import GenerationError, Manifest
from realm_jax.generations.store.publisher import to_prune
from realm_jax.generations.store.retention import NamedGenerations

_COLUMNS = (
  *("step", "blocks", "corpus", "index", "recall", "size"),
  *("created", "leased by", "in use at"),
)


@dataclasses.dataclass(frozen=True)
class Found:
  """A generation as it was found.

  Attributes:
    step: the checkpoint's.
    manifest: what it says of itself, if that can be read.
    bytes: on the disk.
    leased_by: the processes that have it loaded.
    checkpoints: those that name it as in use.
    problem: why it cannot be used; empty where nothing is wrong.
  """

  step: int
  manifest: Manifest | None
  bytes: int
  leased_by: Sequence[str]
  checkpoints: Sequence[int]
  problem: str

  def to_json(self) -> dict[str, Any]:
    """Plain values, those of a manifest that cannot be read as None."""
    manifest = self.manifest
    return {
      "step": self.step,
      "num_blocks": manifest and manifest.num_blocks,
      "corpus_version": manifest and manifest.corpus_version,
      "corpus_fingerprint": manifest and manifest.corpus_fingerprint,
      "index": manifest and manifest.index_kind,
      "recall": manifest and manifest.recall,
      "bytes": self.bytes,
      "created": manifest and manifest.created,
      "leased_by": list(self.leased_by),
      "checkpoints": list(self.checkpoints),
      "problem": self.problem or None,
    }


@dataclasses.dataclass(frozen=True)
class Place:
  """A folder of generations, and the run whose checkpoints need them.

  Attributes:
    generations_dir: where generations lie.
    model_dir: of the run; None where it is not known.
  """

  generations_dir: epath.Path
  model_dir: epath.Path | None

  @classmethod
  def of(
    cls,
    model_dir: epath.PathLike | None,
    generations_dir: epath.PathLike | None,
  ) -> "Place":
    """From one of the two or both.

    Raises:
      GenerationError: neither is given, or there is no such folder.
    """
    if model_dir is None and generations_dir is None:
      raise GenerationError("give --model_dir, --generations_dir, or both")
    folder = epath.Path(
      generations_dir or epath.Path(model_dir or "") / layout.FOLDER
    )
    if not folder.is_dir():
      raise GenerationError(
        f"there is no folder {folder}; `realm_jax.build_index` makes one when "
        "it publishes its first generation"
      )
    if model_dir is None and (folder.parent / FOLDER).is_dir():
      model_dir = folder.parent
    return cls(folder, None if model_dir is None else epath.Path(model_dir))

  def _named(self) -> NamedGenerations | None:
    if self.model_dir is None:
      return None
    return NamedGenerations(CheckpointStore(self.model_dir))

  def look(self, *, checksums: bool = False) -> list[Found]:
    """All that is there, in order.

    Args:
      checksums: whether every byte is read; sizes are always compared.
    """
    named = self._named()
    users = named.users() if named else {}
    leased = holders(self.generations_dir)
    found = []
    for step in layout.all_steps(self.generations_dir):
      manifest, problem = None, ""
      path = layout.path_of(self.generations_dir, step)
      try:
        manifest = manifests.read(path)
        manifests.verify(path, manifest, checksums=checksums)
        if manifest.step != step:
          raise GenerationError(f"{path} is of step {manifest.step}")
      except GenerationError as error:
        problem = str(error)
      found.append(
        Found(
          step=step,
          manifest=manifest,
          bytes=_size(path),
          leased_by=leased.get(step, []),
          checkpoints=users.get(step, []),
          problem=problem,
        )
      )
    return found

  def to_prune(self, *, keep: int) -> list[int]:
    """The steps that the index builder would remove, in its mode `newest`.

    In the mode `every` it keeps those of all checkpoints: the trainer waits
    for them, and where one has said so they stay here, too.

    Raises:
      GenerationError: it is not known whose checkpoints need them.
      UnknownNeedsError: the checkpoints do not say which they need.
    """
    named = self._named()
    if named is None:
      raise GenerationError(
        f"whose checkpoints need what is in {self.generations_dir}? Give "
        "--model_dir, too"
      )
    return to_prune(self.generations_dir, keep=keep, pinned=named.pinned())


def table(found: Sequence[Found]) -> str:
  """A line for each generation, and below them what is wrong with which."""
  if not found:
    return "no generation"
  rows = [_COLUMNS, *map(_cells, found)]
  widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
  lines = [
    "  ".join(
      cell.rjust(width) if i < 2 else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]
  broken = [f"{one.step}: {one.problem}" for one in found if one.problem]
  return "\n".join(lines + (["", "cannot be used:", *broken] if broken else []))


def _cells(one: Found) -> tuple[str, ...]:
  manifest = one.manifest
  if manifest is None:
    described = ("?",) * 4
    created = "?"
  else:
    recall = [f"@{k} {value:.3f}" for k, value in manifest.recall.items()]
    described = (
      f"{manifest.num_blocks:,}",
      f"v{manifest.corpus_version} {manifest.corpus_fingerprint[:8]}",
      manifest.index_kind,
      " ".join(recall) or "–",
    )
    created = manifest.created
  return (
    f"{one.step}{' !' if one.problem else ''}",
    *described,
    shown_bytes(one.bytes),
    created,
    ", ".join(one.leased_by) or "–",
    ", ".join(map(str, one.checkpoints)) or "–",
  )


def shown_bytes(count: int) -> str:
  """A number of bytes with a unit."""
  value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
  while value >= 1000 and len(units) > 1:
    value /= 1000
    units.pop(0)
  return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _size(path: epath.Path) -> int:
  """The bytes of all files below a folder."""
  total = 0
  try:
    for child in path.iterdir():
      total += _size(child) if child.is_dir() else child.stat().length
  except FileNotFoundError:
    pass  # Removed meanwhile.
  return total
