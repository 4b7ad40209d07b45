"""The manifest of a generation: its description and the checksums of files."""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from realm_jax.files.checksum import sha256_of
from realm_jax.files.json_file import JsonValue
from realm_jax.files.object_store.remote import (
  is_remote,
  objects_below,
  read_text,
)
from realm_jax.generations.store import layout

FORMAT_VERSION = 2
_CHECKSUM_KEY = "manifest_sha256"
_MISSING = (FileNotFoundError, NotADirectoryError)


class GenerationError(ValueError):
  """A generation that is missing, damaged or of another corpus or model."""


class DamagedGenerationError(GenerationError):
  """A generation that differs from what was published; it can be rebuilt."""


class DamagedFileError(GenerationError):
  """A file of a generation that changed before it was published."""


@dataclasses.dataclass(frozen=True)
class FileRecord:
  """Path of a file in a generation, its size in bytes and its SHA-256."""

  path: str
  size: int
  sha256: str


@dataclasses.dataclass(frozen=True)
class EmbeddingsShard:
  """Consecutive rows of the vectors, in the file `path`.

  They were embedded with checkpoints of `oldest_step` … `newest_step`. Where
  these differ, the file `steps_path` has the step of each row, in int32.
  """

  path: str
  rows: int
  oldest_step: int
  newest_step: int
  steps_path: str = ""


@dataclasses.dataclass(frozen=True)
class PartialRecord:
  """The partial refresh that made a generation from an earlier one.

  Attributes:
    base: Checkpoint step of the generation that vectors were copied from.
    partials: Number of partial generations since the last full one, this one
      included. One that is rebuilt for a new corpus version counts once.
    embedded_blocks: Number of blocks embedded.
    embedded_share: Share of the tokens of a full embedding.
    new_blocks: Number of blocks that the base lacks.
  """

  base: int
  partials: int
  embedded_blocks: int
  embedded_share: float
  new_blocks: int

  @classmethod
  def from_json(cls, values: Mapping[str, Any]) -> "PartialRecord":
    """Reads a record; ignores what only older manifests have."""
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: values[name] for name in values if name in names})


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The description of a generation.

  Attributes:
    step: Checkpoint step that the generation was built from.
    corpus_fingerprint: Fingerprint of the corpus that was embedded.
    dtype: Type of the stored vectors, `float32` or `bfloat16`.
    recall: Recall@k against exact search on held-out queries, by k; empty for
      an index that does not search vectors.
    embeddings: Files of the vectors, in row order.
    model: Checksum of the model's settings and the names and shapes of its
      parameters; empty for imported vectors.
    partial: Record of the partial refresh; None where all were embedded.
    block_keys: File of checksums of the blocks' tokens, by which a partial
      refresh finds them in another corpus version; empty where there is none.
    index_report: Choices and measurements of the index's build.
    files: All files but the manifest, relative to `folder`.
    folder: Directory of the files, relative to the generation's directory. On
      an object store each build writes to a new one, so that two never mix.
    created: Time of publication, in UTC.
  """

  step: int
  corpus_fingerprint: str
  corpus_version: int
  num_blocks: int
  dim: int
  dtype: str
  index_kind: str
  index_parameters: Mapping[str, JsonValue]
  recall: dict[str, float]
  recall_queries: int
  embed_seconds: float
  build_seconds: float
  embeddings: tuple[EmbeddingsShard, ...]
  model: str = ""
  partial: PartialRecord | None = None
  block_keys: str = ""
  index_report: Mapping[str, JsonValue] = dataclasses.field(
    default_factory=dict
  )
  files: tuple[FileRecord, ...] = ()
  folder: str = "."
  created: str = ""
  format_version: int = FORMAT_VERSION

  @property
  def oldest_step(self) -> int:
    """The checkpoint step that the oldest vector was embedded with."""
    return min(shard.oldest_step for shard in self.embeddings)

  def to_json(self) -> str:
    """Returns the text of the manifest file."""
    return to_checked_json(dataclasses.asdict(self))


def to_checked_json(values: Mapping[str, JsonValue]) -> str:
  """Returns JSON text that holds a checksum of its own values."""
  values = {**values, _CHECKSUM_KEY: json_checksum(values)}
  return json.dumps(values, indent=2) + "\n"


def from_checked_json(text: str) -> dict[str, Any]:
  """Reads what `to_checked_json` wrote.

  Raises:
    ValueError, KeyError: The text is damaged.
  """
  values = json.loads(text)
  if values.pop(_CHECKSUM_KEY) != json_checksum(values):
    raise ValueError("it does not match its own checksum")
  return values


def json_checksum(values: Mapping[str, JsonValue]) -> str:
  """Returns the SHA-256 of plain values, but for their own checksum."""
  rest = {name: values[name] for name in values if name != _CHECKSUM_KEY}
  return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read(directory: epath.PathLike) -> Manifest:
  """Reads the manifest in a generation's directory.

  Raises:
    GenerationError: There is none, or it has another format version.
    DamagedGenerationError: It is not valid.
  """
  path = epath.Path(directory) / layout.MANIFEST
  try:
    text = read_text(path)
    values = json.loads(text)
    version = values["format_version"]
    # The version, too, is believed only if the checksum matches. Manifests of
    # the first format have none.
    if version == FORMAT_VERSION or _CHECKSUM_KEY in values:
      values = from_checked_json(text)
    if version == FORMAT_VERSION:
      return _from_values(values)
  except _MISSING:
    raise GenerationError(
      f"{directory} has no {layout.MANIFEST}, so it is not a generation"
    ) from None
  except (ValueError, KeyError, TypeError) as error:
    raise DamagedGenerationError(
      f"{path} is not a manifest ({error!r}); remove that generation and let "
      "build_index make it again"
    ) from error
  raise GenerationError(
    f"{path} has format version {version}, and this program reads "
    f"{FORMAT_VERSION}; use the realm_jax that wrote it, or make it again"
  )


def _from_values(values: dict[str, Any]) -> Manifest:
  partial = values.pop("partial")
  manifest = Manifest(
    embeddings=tuple(EmbeddingsShard(**s) for s in values.pop("embeddings")),
    files=tuple(FileRecord(**f) for f in values.pop("files")),
    partial=None if partial is None else PartialRecord.from_json(partial),
    **values,
  )
  _check_consistent(manifest)
  return manifest


def _check_consistent(manifest: Manifest) -> None:
  rows = sum(shard.rows for shard in manifest.embeddings)
  if rows != manifest.num_blocks:
    raise ValueError(
      f"its embeddings have {rows} rows for {manifest.num_blocks} blocks"
    )
  for path in [file.path for file in manifest.files] + [manifest.folder]:
    # A path that leads outside would let a manifest name any file to read.
    if path.startswith("/") or ".." in path.split("/"):
      raise ValueError(f"path {path!r} leads outside the generation")


def records_of(
  root: epath.PathLike, paths: Sequence[str], *, drop_pages: bool = False
) -> tuple[FileRecord, ...]:
  """Returns sizes and checksums of files below `root`, read in parallel.

  With `drop_pages` the system's page cache gives up what was read. A missing
  file is a FileNotFoundError.
  """

  def record(path: str) -> FileRecord:
    file = epath.Path(root) / path
    checksum = sha256_of(file, drop_pages=drop_pages)
    return FileRecord(path, file.stat().length, checksum)

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    return tuple(pool.map(record, paths))


def verify(
  directory: epath.PathLike,
  manifest: Manifest,
  *,
  checksums: bool = True,
) -> None:
  """Compares every file with its size and, if asked, its checksum.

  Raises:
    DamagedGenerationError: A file is missing, cut or changed.
  """
  root = epath.Path(directory) / manifest.folder
  sizes = _sizes(root, manifest.files)
  for file in manifest.files:
    if (size := sizes.get(file.path)) is None:
      raise _damaged(root / file.path, "is missing")
    if size != file.size:
      raise _damaged(root / file.path, f"has {size} bytes and not {file.size}")

  def check(file: FileRecord) -> None:
    try:
      found = sha256_of(root / file.path, drop_pages=True)
    except _MISSING:
      raise _damaged(root / file.path, "is missing") from None
    if found != file.sha256:
      raise _damaged(root / file.path, "does not match its checksum")

  if checksums:
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      list(pool.map(check, manifest.files))


def _sizes(root: epath.Path, files: Sequence[FileRecord]) -> dict[str, int]:
  """Returns the sizes of those files that are there, by path."""
  if is_remote(root):
    return {path: info.bytes for path, info in objects_below(root).items()}
  sizes = {}
  for file in files:
    with contextlib.suppress(*_MISSING):
      sizes[file.path] = (root / file.path).stat().length
  return sizes


def _damaged(path: epath.Path, problem: str) -> DamagedGenerationError:
  return DamagedGenerationError(
    f"{path} {problem}, so its generation is damaged; remove it and let "
    "build_index make it again"
  )
