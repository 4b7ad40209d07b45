"""The state of all generations of a run, for people."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence

from etils import epath
from tqdm import tqdm

from realm_jax.checkpoints.store import FOLDER, CheckpointStore
from realm_jax.console import columns
from realm_jax.generations.choice import RetainedGenerations
from realm_jax.generations.manifest import GenerationError, Manifest
from realm_jax.generations.store import GenerationStore, directory_of
from realm_jax.storage.access import require_readable
from realm_jax.storage.json_files import JsonValue
from realm_jax.storage.paths import is_remote, objects_below

_COLUMNS = (
  *("step", "blocks", "corpus", "index", "recall", "size"),
  *("created", "in use at"),
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
      "checkpoints": list(self.checkpoints),
      "problem": self.problem or None,
    }


class RunGenerations:
  """The generations of a run, found by one of its directories or both.

  Raises:
    GenerationError: Neither is given, or there is no such directory.
    StoreAccessError: A bucket cannot be read.
  """

  def __init__(
    self,
    model_dir: epath.PathLike | None,
    generations_dir: epath.PathLike | None,
  ):
    if model_dir is None and generations_dir is None:
      raise GenerationError("give --model_dir, --generations_dir, or both")
    require_readable(model_dir, generations_dir)
    folder = directory_of(model_dir or "", generations_dir)
    if not folder.is_dir():
      raise GenerationError(
        f"there is no folder {folder}; `realm_jax.build_index` makes one when "
        "it publishes its first generation"
      )
    if model_dir is None and (folder.parent / FOLDER).is_dir():
      model_dir = folder.parent
    self.store = GenerationStore(folder)
    self._model_dir = model_dir

  @contextlib.contextmanager
  def _retained(self) -> Iterator[RetainedGenerations | None]:
    if self._model_dir is None:
      yield None
      return
    with contextlib.closing(CheckpointStore(self._model_dir)) as checkpoints:
      yield RetainedGenerations(checkpoints)

  def inspect(self, *, checksums: bool = False) -> list[GenerationStatus]:
    """Returns the status of every generation, in order of steps.

    Sizes are always compared; with `checksums` all bytes are read.
    """
    with self._retained() as retained:
      users = retained.users() if retained else {}
    statuses = []
    for step in self.store.steps():
      manifest, problem = None, ""
      try:
        manifest = self.store.manifest(step)
        self.store.verify(step, checksums=checksums)
      except GenerationError as error:
        problem = str(error)
      size = _size(self.store.path(step))
      statuses.append(
        GenerationStatus(step, manifest, size, users.get(step, []), problem)
      )
    return statuses

  def prunable(self, *, keep: int) -> list[int]:
    """Returns the steps that a sidecar in the mode `newest` would remove.

    The generations of checkpoints whose run waits for them stay, too.

    Raises:
      GenerationError: The run of the generations is not known.
      UnknownNeedsError: The checkpoints do not say which they need.
    """
    with self._retained() as retained:
      if retained is None:
        raise GenerationError(
          "no run is known whose checkpoints need "
          f"{self.store.directory}. Give --model_dir, too"
        )
      return self.store.prunable(keep=keep, pinned=retained.pinned())


def table(statuses: Sequence[GenerationStatus]) -> str:
  """Returns a line for each generation, and the problems below."""
  if not statuses:
    return "no generation"
  text = columns([_COLUMNS, *map(_cells, statuses)])
  broken = [f"{one.step}: {one.problem}" for one in statuses if one.problem]
  return "\n".join(
    [text, *(["", "cannot be used:", *broken] if broken else [])]
  )


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
    tqdm.format_sizeof(status.bytes, "B"),
    created,
    ", ".join(map(str, status.checkpoints)) or "–",
  )


def _size(path: epath.Path) -> int:
  """Returns the size of all files below a directory."""
  if is_remote(path):
    return sum(info.bytes for info in objects_below(path).values())
  total = 0
  for folder, _, names in os.walk(path):
    for name in names:
      # It may be removed meanwhile.
      with contextlib.suppress(FileNotFoundError):
        total += os.stat(os.path.join(folder, name)).st_size
  return total
