"""The manifest of a generation: what it is, and every byte it consists of."""

import concurrent.futures
import dataclasses
import datetime
import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from realm_jax.generations.store import layout
from realm_jax.indexes.thread_priority import lower_thread_priority

FORMAT_VERSION = 2
# Between pieces a thread needs Python's lock: one that gives way should seldom.
_PIECE_BYTES = 1 << 23
_SEAL = "manifest_sha256"
_MISSING = (FileNotFoundError, NotADirectoryError)


class GenerationError(ValueError):
  """A generation that is missing, damaged or of something else."""


class DamagedGenerationError(GenerationError):
  """A generation that is not what was published, and can be made again."""


class DamagedFileError(GenerationError):
  """A file that is not what it was when it was made; `path` is its name."""

  def __init__(self, path: str):
    super().__init__(f"{path} has changed since it was written")
    self.path = path


@dataclasses.dataclass(frozen=True)
class FileRecord:
  """One file; `path` is relative to the generation's directory."""

  path: str
  size: int
  sha256: str


@dataclasses.dataclass(frozen=True)
class EmbeddingsShard:
  """Consecutive rows in one file.

  Attributes:
    path: of the vectors.
    rows: how many there are.
    oldest_step: the checkpoint that the oldest vector was embedded with, …
    newest_step: … and the newest.
    steps_path: each row's step, int32; empty where all are of one.
  """

  path: str
  rows: int
  oldest_step: int
  newest_step: int
  steps_path: str = ""


@dataclasses.dataclass(frozen=True)
class PartialRecord:
  """How a generation came from an earlier one that was not embedded anew.

  Attributes:
    base: the step of the generation that the other vectors were taken from.
    partials: how many generations lie between a full one and the next, up to
      this one; one that is made again for its corpus counts once.
    embedded_blocks: how many blocks were embedded, the sample among them.
    embedded_share: of the tokens of a full embedding.
    new_blocks: those that the base did not have, or had with another text.
    due_blocks: those embedded for their age.
    sample_blocks: drawn to see what moved.
    drift: for each age, the steps it spans, `pairs` fitted on, and the mean
      squared error of the stored vectors on pairs left out of the fit, as
      they were (`stored`) and `corrected`; `is_used` where that was better.
  """

  base: int
  partials: int
  embedded_blocks: int
  embedded_share: float
  new_blocks: int
  due_blocks: int
  sample_blocks: int
  drift: tuple[dict[str, Any], ...] = ()


def partial_from(values: dict[str, Any] | None) -> PartialRecord | None:
  """The record as it was before it became JSON."""
  if values is None:
    return None
  given: dict[str, Any] = {**values, "drift": tuple(values["drift"])}
  return PartialRecord(**given)


@dataclasses.dataclass(frozen=True)
class Manifest:
  """What a generation says of itself.

  Attributes:
    step: the checkpoint that its vectors were made with.
    corpus_fingerprint: of the corpus whose blocks they embed.
    corpus_version: of that corpus.
    num_blocks: how many there are.
    dim: of the vectors.
    dtype: of the stored vectors, `float32` or `bfloat16`.
    index_kind: the search structure.
    index_parameters: its settings, as plain values.
    recall: recall@k against exact search on held-out queries, by k; empty
      for an index that does not search vectors.
    recall_queries: how many queries it was measured on.
    embed_seconds: spent embedding the corpus.
    build_seconds: spent building the search structure.
    embeddings: the files of vectors, in row order.
    model: a checksum of what the vectors are made with, but for the values of
      parameters; empty where they came from elsewhere.
    partial: where some vectors are an earlier generation's.
    block_keys: a file of checksums of the blocks' tokens, by which the next
      generation knows them in another version of the corpus; may be empty.
    index_report: what the index's building chose and measured.
    files: every file but the manifest, relative to `folder`.
    folder: where they lie below the generation's directory; a builder on an
      object store writes to a folder of its own, so that two never mix.
    created: when, in UTC.
  """

  step: int
  corpus_fingerprint: str
  corpus_version: int
  num_blocks: int
  dim: int
  dtype: str
  index_kind: str
  index_parameters: dict[str, Any]
  recall: dict[str, float]
  recall_queries: int
  embed_seconds: float
  build_seconds: float
  embeddings: tuple[EmbeddingsShard, ...]
  model: str = ""
  partial: PartialRecord | None = None
  block_keys: str = ""
  index_report: dict[str, Any] = dataclasses.field(default_factory=dict)
  files: tuple[FileRecord, ...] = ()
  folder: str = "."
  created: str = ""
  format_version: int = FORMAT_VERSION

  @property
  def oldest_step(self) -> int:
    """The checkpoint that the oldest vector was embedded with."""
    return min(shard.oldest_step for shard in self.embeddings)

  def to_json(self) -> str:
    """The manifest as it lies on disk."""
    return sealed(dataclasses.asdict(self))


def sealed(values: Mapping[str, Any]) -> str:
  """A manifest's values as JSON, with a checksum of their own."""
  values = {**values, _SEAL: _seal(values)}
  return json.dumps(values, indent=2) + "\n"


def unsealed(text: str) -> dict[str, Any]:
  """The values that `sealed` wrote.

  Raises:
    ValueError, KeyError: the text is damaged.
  """
  values = json.loads(text)
  if values.pop(_SEAL) != _seal(values):
    raise ValueError("it does not match its own checksum")
  return values


def _seal(values: Mapping[str, Any]) -> str:
  rest = {name: value for name, value in values.items() if name != _SEAL}
  return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def from_json(text: str, *, where: str) -> Manifest:
  """Reads a manifest's text; `where` is for the error.

  Raises:
    DamagedGenerationError: it is no manifest.
    GenerationError: it is a newer program's.
  """
  try:
    values = json.loads(text)
    version = values["format_version"]
    # Before the version is believed; every format that has one has this one.
    if _SEAL in values and values[_SEAL] != _seal(values):
      raise ValueError("it does not match its own checksum")
  except (ValueError, KeyError, TypeError) as error:
    raise DamagedGenerationError(
      f"{where} is not a manifest ({error!r}); remove that generation and let "
      "build_index make it again"
    ) from error
  if version != FORMAT_VERSION:
    raise GenerationError(
      f"{where} has format version {version}, and this program reads "
      f"{FORMAT_VERSION}; use the realm_jax that wrote it, or build it again"
    )
  try:
    del values[_SEAL]
    manifest = Manifest(**values)
    manifest = dataclasses.replace(
      manifest,
      embeddings=tuple(EmbeddingsShard(**s) for s in values["embeddings"]),
      files=tuple(FileRecord(**f) for f in values["files"]),
      partial=partial_from(values["partial"]),
    )
    _require_plausible(manifest)
  except (TypeError, KeyError, ValueError) as error:
    raise DamagedGenerationError(
      f"{where} is not a whole manifest: {error}; remove that generation and "
      "let build_index make it again"
    ) from error
  return manifest


def _require_plausible(manifest: Manifest) -> None:
  rows = sum(shard.rows for shard in manifest.embeddings)
  if rows != manifest.num_blocks:
    raise ValueError(
      f"its embeddings have {rows} rows for {manifest.num_blocks} blocks"
    )
  for path in [file.path for file in manifest.files] + [manifest.folder]:
    # A path that leads outside would make a reader touch what is not its own.
    if path.startswith("/") or ".." in path.split("/"):
      raise ValueError(f"path {path!r} leads outside the generation")
  known = {file.path for file in manifest.files}
  named = [s.path for s in manifest.embeddings]
  named += [s.steps_path for s in manifest.embeddings if s.steps_path]
  named += [manifest.block_keys] if manifest.block_keys else []
  if missing := [path for path in named if path not in known]:
    raise ValueError(f"its files lack {missing[0]}")
  for shard in manifest.embeddings:
    if not shard.oldest_step <= shard.newest_step <= manifest.step:
      raise ValueError(
        f"{shard.path} is of steps {shard.oldest_step} … {shard.newest_step} "
        f"in a generation of step {manifest.step}"
      )


def read(directory: epath.PathLike) -> Manifest:
  """The manifest of a generation's directory.

  Raises:
    GenerationError: there is none, or a newer program's.
    DamagedGenerationError: it is not valid.
  """
  path = epath.Path(directory) / layout.MANIFEST
  try:
    text = path.read_text()
  except _MISSING:
    raise GenerationError(
      f"{directory} has no {layout.MANIFEST}, so it is not a generation"
    ) from None
  except UnicodeDecodeError as error:
    raise DamagedGenerationError(f"{path} is damaged: {error}") from error
  return from_json(text, where=str(path))


def now() -> str:
  """The time, as a manifest writes it."""
  return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def records_of(
  root: epath.PathLike, paths: Sequence[str], *, forget: bool = False
) -> tuple[FileRecord, ...]:
  """Sizes and checksums of files below `root`, in parallel.

  Args:
    root: of the paths.
    paths: of the files.
    forget: whether the system need not keep what was read for others, as where
      they are verified.

  Raises:
    FileNotFoundError: a file is missing.
  """
  root = epath.Path(root)

  def record(path: str) -> FileRecord:
    length = root.joinpath(path).stat().length
    return FileRecord(path, length, _sha256(root / path, forget=forget))

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    return tuple(pool.map(record, paths))


def verify(
  directory: epath.PathLike,
  manifest: Manifest,
  *,
  checksums: bool = True,
  gives_way: bool = False,
  named: epath.PathLike | None = None,
) -> None:
  """Holds every file against its size and, if asked, its checksum.

  Args:
    directory: the generation's.
    manifest: what was read there.
    checksums: whether to read the files; sizes are always compared.
    gives_way: whether one thread reads, which gives way to others; otherwise
      one for every core does.
    named: the directory that an error names; None is `directory`.

  Raises:
    DamagedGenerationError: a file is missing, cut or changed.
  """
  root = epath.Path(directory) / manifest.folder
  shown = epath.Path(named or directory) / manifest.folder
  for file in manifest.files:
    try:
      size = root.joinpath(file.path).stat().length
    except _MISSING:
      raise _damage(shown, file.path, "is missing") from None
    if size != file.size:
      what = f"has {size} bytes and not {file.size}"
      raise _damage(shown, file.path, what)
  if not checksums:
    return

  def hold(file: FileRecord) -> None:
    try:
      is_whole = _sha256(root / file.path, forget=True) == file.sha256
    except _MISSING:  # Removed since its size was asked for.
      raise _damage(shown, file.path, "is missing") from None
    if not is_whole:
      raise _damage(shown, file.path, "does not match its checksum")

  with concurrent.futures.ThreadPoolExecutor(
    1 if gives_way else os.cpu_count(),
    initializer=lower_thread_priority if gives_way else None,
  ) as pool:
    for _ in pool.map(hold, manifest.files):
      pass


def _damage(root: epath.Path, path: str, what: str) -> DamagedGenerationError:
  return DamagedGenerationError(
    f"{root / path} {what}, so its generation is damaged; remove it and let "
    "build_index make it again"
  )


def _sha256(path: epath.Path, *, forget: bool = False) -> str:
  digest = hashlib.sha256()
  for piece in _pieces(path, forget=forget):
    digest.update(piece)
  return digest.hexdigest()


def _pieces(path: epath.Path, *, forget: bool) -> Iterator[bytes | memoryview]:
  """What a file holds; each piece is gone when the next is asked for.

  Args:
    path: of the file.
    forget: whether the system should not keep what was read for others: it
      then reads gigabytes into the same few pages, and not into new ones.
  """
  if layout.is_remote(path):
    with path.open("rb") as file:
      while piece := file.read(_PIECE_BYTES):
        yield piece
    return
  # In pages of its own, so that the memory of steps is left alone.
  with (
    open(path, "rb", buffering=0) as file,
    mmap.mmap(-1, _PIECE_BYTES) as pages,
  ):
    while count := file.readinto(pages):
      with memoryview(pages)[:count] as piece:
        yield piece
      if forget and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, file.tell(), os.POSIX_FADV_DONTNEED)
