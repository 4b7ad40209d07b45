"""The state of all generations of a run, for people."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from etils import epath

from realm_jax.checkpoints.store import FOLDER, CheckpointStore
from realm_jax.files.json_file import JsonValue
from realm_jax.files.object_store.remote import is_remote, objects_below
from realm_jax.files.object_store.store_access import require_readable
from realm_jax.generations.store import layout
from realm_jax.generations.store import manifest as manifests
from realm_jax.generations.store.leases import holders
from realm_jax.generations.store.manifest import GenerationError, Manifest
from realm_jax.generations.store.retention import RetainedGenerations, to_prune

_COLUMNS = (
  *("step", "blocks", "corpus", "index", "recall", "size"),
  *("created", "leased by", "in use at"),
)


@dataclasses.dataclass(frozen=True)
class GenerationStatus:
  """The state of one generation, with its manifest if that can be read.

  It was in use at the `checkpoints`. The `problem` says why it cannot be used,
  and is empty for a valid generation; `bytes` is the size of all files.
  """

  step: int
  manifest: Manifest | None
  bytes: int
  leased_by: Sequence[str]
  checkpoints: Sequence[int]
  problem: str

  def to_json(self) -> dict[str, JsonValue]:
    """Returns plain values; None for those of an unreadable manifest."""
    m = self.manifest
    return {
      "step": self.step,
      "num_blocks": None if m is None else m.num_blocks,
      "corpus_version": None if m is None else m.corpus_version,
      "corpus_fingerprint": None if m is None else m.corpus_fingerprint,
      "index": None if m is None else m.index_kind,
      "recall": None if m is None else m.recall,
      "bytes": self.bytes,
      "created": None if m is None else m.created,
      "leased_by": list(self.leased_by),
      "checkpoints": list(self.checkpoints),
      "problem": self.problem or None,
    }


@dataclasses.dataclass(frozen=True)
class RunGenerations:
  """The generations of a run, whose `model_dir` may be unknown."""

  generations_dir: epath.Path
  model_dir: epath.Path | None

  @classmethod
  def find(
    cls,
    model_dir: epath.PathLike | None,
    generations_dir: epath.PathLike | None,
  ) -> "RunGenerations":
    """Finds the directories from one of them or both.

    Raises:
      GenerationError: Neither is given, or there is no such directory.
      StoreAccessError: A bucket cannot be read.
    """
    if model_dir is None and generations_dir is None:
      raise GenerationError("give --model_dir, --generations_dir, or both")
    require_readable(model_dir, generations_dir)
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

  @contextlib.contextmanager
  def _retained(self) -> Iterator[RetainedGenerations | None]:
    if self.model_dir is None:
      yield None
      return
    with contextlib.closing(CheckpointStore(self.model_dir)) as checkpoints:
      yield RetainedGenerations(checkpoints)

  def inspect(self, *, checksums: bool = False) -> list[GenerationStatus]:
    """Returns the status of every generation, in order of steps.

    Sizes are always compared; with `checksums` all bytes are read.
    """
    with self._retained() as retained:
      users = retained.users() if retained else {}
    leased = holders(self.generations_dir)
    statuses = []
    for step in layout.published_steps(self.generations_dir):
      manifest, problem = None, ""
      path = layout.path_of(self.generations_dir, step)
      try:
        manifest = manifests.read(path)
        manifests.verify(path, manifest, checksums=checksums)
        if manifest.step != step:
          raise GenerationError(f"{path} is of step {manifest.step}")
      except GenerationError as error:
        problem = str(error)
      statuses.append(
        GenerationStatus(
          step=step,
          manifest=manifest,
          bytes=_size(path),
          leased_by=leased.get(step, []),
          checkpoints=users.get(step, []),
          problem=problem,
        )
      )
    return statuses

  def to_prune(self, *, keep: int) -> list[int]:
    """Returns the steps that a sidecar in the mode `newest` would remove.

    The generations of checkpoints whose run waits for them stay, too.

    Raises:
      GenerationError: The run of the generations is not known.
      UnknownNeedsError: The checkpoints do not say which they need.
    """
    with self._retained() as retained:
      if retained is None:
        raise GenerationError(
          f"no run is known whose checkpoints need {self.generations_dir}. "
          "Give --model_dir, too"
        )
      pinned = retained.pinned()
    return to_prune(self.generations_dir, keep=keep, pinned=pinned)


def table(statuses: Sequence[GenerationStatus]) -> str:
  """Returns a line for each generation, and the problems below."""
  if not statuses:
    return "no generation"
  rows = [_COLUMNS, *map(_cells, statuses)]
  widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
  lines = [
    "  ".join(
      cell.rjust(width) if i < 2 else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]
  broken = [f"{one.step}: {one.problem}" for one in statuses if one.problem]
  return "\n".join(lines + (["", "cannot be used:", *broken] if broken else []))


def _cells(status: GenerationStatus) -> tuple[str, ...]:
  described, created = ("?",) * 4, "?"
  if (manifest := status.manifest) is not None:
    recall = [f"@{k} {value:.3f}" for k, value in manifest.recall.items()]
    created = manifest.created
    described = (
      f"{manifest.num_blocks:,}",
      f"v{manifest.corpus_version} {manifest.corpus_fingerprint[:8]}",
      manifest.index_kind,
      " ".join(recall) or "–",
    )
  return (
    f"{status.step}{' !' if status.problem else ''}",
    *described,
    bytes_text(status.bytes),
    created,
    ", ".join(status.leased_by) or "–",
    ", ".join(map(str, status.checkpoints)) or "–",
  )


def bytes_text(count: int) -> str:
  """Returns a number of bytes with a unit."""
  value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
  while value >= 1000 and len(units) > 1:
    value /= 1000
    units.pop(0)
  return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _size(path: epath.Path) -> int:
  """Returns the size of all files below a directory."""
  if is_remote(path):
    return sum(info.bytes for info in objects_below(path).values())
  total = 0
  try:
    for child in path.iterdir():
      total += _size(child) if child.is_dir() else child.stat().length
  except FileNotFoundError:
    pass  # Removed meanwhile.
  return total
