"""The state of all generations of a run, for people."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

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
    users = [at for at, use in used.items() if use.generation == step]
    statuses.append(GenerationStatus(step, manifest, users, problem))
  return statuses


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
