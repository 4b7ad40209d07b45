"""The state of all generations of a run, for people."""

import contextlib
import dataclasses
from collections.abc import Sequence

from etils import epath
from tqdm import tqdm

from realm_jax.checkpoints.store import FOLDER, CheckpointStore
from realm_jax.console import columns
from realm_jax.generations.manifest import GenerationError, Manifest
from realm_jax.generations.retention import GenerationUses
from realm_jax.generations.store import GenerationStore, directory_of
from realm_jax.storage.access import require_readable


@dataclasses.dataclass(frozen=True)
class GenerationStatus:
  """The state of one generation, with its manifest if that can be read.

  It was in use at the `checkpoints`. The `problem` says why it cannot be used,
  and is empty for a valid generation.
  """

  step: int
  manifest: Manifest | None
  checkpoints: Sequence[int]
  problem: str


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

  def inspect(self, *, checksums: bool = False) -> list[GenerationStatus]:
    """Returns the status of every generation, in order of steps.

    Sizes are always compared; with `checksums` all bytes are read.
    """
    used = {}
    if self._model_dir is not None:
      with contextlib.closing(CheckpointStore(self._model_dir)) as checkpoints:
        used = GenerationUses(checkpoints).of(checkpoints.steps())
    statuses = []
    for step in self.store.steps():
      manifest, problem = None, ""
      try:
        manifest = self.store.manifest(step)
        self.store.verify(step, checksums=checksums)
      except GenerationError as error:
        problem = str(error)
      users = [at for at, use in used.items() if use.generation == step]
      statuses.append(GenerationStatus(step, manifest, users, problem))
    return statuses

  def prunable(self, *, keep: int) -> list[int]:
    """Returns the steps that a sidecar in the mode `newest` would remove.

    The generations of checkpoints whose run waits for them stay, too.

    Raises:
      GenerationError: The run of the generations is not known.
      UnknownNeedsError: The checkpoints do not say which they need.
    """
    if self._model_dir is None:
      raise GenerationError(
        f"no run is known whose checkpoints need {self.store.directory}. Give "
        "--model_dir, too"
      )
    with contextlib.closing(CheckpointStore(self._model_dir)) as checkpoints:
      pinned = GenerationUses(checkpoints).pinned()
    return self.store.prunable(keep=keep, pinned=pinned)


def table(statuses: Sequence[GenerationStatus]) -> str:
  """Returns a line for each generation, and the problems below."""
  if not statuses:
    return "no generation"
  header = "step blocks corpus index recall size created used_at".split()
  problems = [f"{one.step}: {one.problem}" for one in statuses if one.problem]
  lines = [columns([header, *map(_cells, statuses)])]
  return "\n".join(
    [*lines, *(["", "cannot be used:"] if problems else []), *problems]
  )


def _cells(status: GenerationStatus) -> tuple[str, ...]:
  described = ("?",) * 6
  if (manifest := status.manifest) is not None:
    recall = [f"@{k} {value:.3f}" for k, value in manifest.recall.items()]
    size = sum(file.size for file in manifest.files)
    described = (
      f"{manifest.num_blocks:,}",
      f"v{manifest.corpus_version} {manifest.corpus_fingerprint[:8]}",
      manifest.index_kind,
      " ".join(recall) or "–",
      tqdm.format_sizeof(size, "B"),
      manifest.created,
    )
  return (
    f"{status.step}{' !' if status.problem else ''}",
    *described,
    ", ".join(map(str, status.checkpoints)) or "–",
  )
