"""What the generations of a run are like, and which its checkpoints need."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from etils import epath
from tqdm import tqdm

from realm_jax.checkpoints.store import (
  FOLDER,
  CheckpointStore,
  LoopItem,
  recorded_generation,
)
from realm_jax.console import columns
from realm_jax.generations.manifest import GenerationError, Manifest
from realm_jax.generations.store import GenerationStore, directory_of
from realm_jax.storage.access import require_readable


class GenerationUses:
  """What the checkpoints of a run say of the generations that they use."""

  def __init__(self, checkpoints: CheckpointStore):
    self._checkpoints = checkpoints
    # The loop's state of each checkpoint, which is read once.
    self._loops: dict[int, LoopItem] = {}

  def of(self, steps: Sequence[int] | None = None) -> dict[int, int | None]:
    """Returns the generations at checkpoints, or all, that can be read."""
    steps = self._checkpoints.steps() if steps is None else steps
    for step in set(steps) - set(self._loops):
      # It may be removed meanwhile, or unreadable.
      with contextlib.suppress(ValueError, OSError):
        self._loops[step] = self._checkpoints.loop_item(step)
    read = [step for step in steps if step in self._loops]
    return {step: recorded_generation(self._loops[step]) for step in read}

  def pinned(self, *, every: bool = False) -> set[int]:
    """Returns the generations that a run resumed from any checkpoint needs.

    A run that waits for its generations needs those of all its checkpoints.
    With `every`, all checkpoints are taken to be of such a run.

    Raises:
      GenerationError: There is no checkpoint, or one cannot be read.
    """
    directory, steps = self._checkpoints.directory, self._checkpoints.steps()
    if not steps:
      raise GenerationError(
        f"{directory} has no checkpoint that says which generations are "
        "needed; give the MODEL_DIR of the run"
      )
    used = self.of(steps)
    if unread := set(steps) - set(used):
      raise GenerationError(
        f"checkpoint {min(unread)} of {directory} does not say which "
        "generation it needs, for it cannot be read; remove it, or try again"
      )
    waits = [every or self._loops[step].get("lag_steps", 0) for step in steps]
    waiting = itertools.compress(steps, waits)
    return {step for step in (*used.values(), *waiting) if step is not None}


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


@contextlib.contextmanager
def open_run(
  model_dir: epath.PathLike | None, generations_dir: epath.PathLike | None
) -> Iterator[tuple[GenerationStore, GenerationUses | None]]:
  """Opens the generations of a run by one of its directories, or both.

  What its checkpoints use is None where no checkpoints are found.

  Raises:
    GenerationError: Neither is given, or there is no such directory.
    StoreAccessError: A bucket cannot be read.
  """
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
  store = GenerationStore(folder)
  if model_dir is None:
    yield store, None
    return
  with contextlib.closing(CheckpointStore(model_dir)) as checkpoints:
    yield store, GenerationUses(checkpoints)


def inspect(
  store: GenerationStore,
  uses: GenerationUses | None,
  *,
  checksums: bool = False,
) -> list[GenerationStatus]:
  """Returns the status of every generation, in order of steps.

  Sizes are always compared; with `checksums` all bytes are read.
  """
  used = uses.of() if uses is not None else {}
  statuses = []
  for step in store.steps():
    manifest, problem = None, ""
    try:
      manifest = store.manifest(step)
      store.verify(step, checksums=checksums)
    except GenerationError as error:
      problem = str(error)
    users = [at for at, generation in used.items() if generation == step]
    statuses.append(GenerationStatus(step, manifest, users, problem))
  return statuses


def table(statuses: Sequence[GenerationStatus]) -> str:
  """Returns a line for each generation, and the problems below."""
  if not statuses:
    return "no generation"
  header = "step blocks corpus index recall size created used_at"
  rows: list[Sequence[str]] = [header.split()]
  for one in statuses:
    described = ["?"] * 6
    if (manifest := one.manifest) is not None:
      recall = [f"@{k} {value:.3f}" for k, value in manifest.recall.items()]
      size = sum(file.size for file in manifest.files)
      described = [
        f"{manifest.num_blocks:,}",
        f"v{manifest.corpus_version} {manifest.corpus_fingerprint[:8]}",
        manifest.index_kind,
        " ".join(recall) or "–",
        tqdm.format_sizeof(size, "B"),
        manifest.created,
      ]
    step = f"{one.step}{' !' if one.problem else ''}"
    users = ", ".join(map(str, one.checkpoints)) or "–"
    rows.append([step, *described, users])
  problems = [f"{one.step}: {one.problem}" for one in statuses if one.problem]
  return "\n".join([columns(rows), *problems])
