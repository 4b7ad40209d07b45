"""The manifest of a snapshot: its description and the records of files."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from etils import epath

from realm_jax.errors import ExitCode, RealmError
from realm_jax.settings import require_valid
from realm_jax.storage.json_files import JsonValue
from realm_jax.storage.staging import FileRecord, require_below

FORMAT_VERSION = 4
StoredDtype = Literal["float32", "bfloat16"]
_CHECKSUM_KEY = "manifest_sha256"
# End of messages about damage.
REMEDY = (
  ", so its snapshot is damaged; remove it and let build_index make it again"
)


class SnapshotError(RealmError):
  """A snapshot is missing, damaged, or for another corpus or model."""


class MissingSnapshotError(SnapshotError):
  """A snapshot that a checkpoint needs, and that is not published yet."""


class DamagedSnapshotError(SnapshotError):
  """A snapshot differs from what was published.

  It can be rebuilt, so a supervisor restarts a run that needs it.
  """

  exit_code = ExitCode.STORE_OUTAGE


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The description of a snapshot.

  Attributes:
    step: Checkpoint step that the snapshot was built from.
    corpus_fingerprint: Fingerprint of the corpus that was embedded.
    dtype: Type of the stored vectors.
    recall: Recall@k against exact search on held-out queries, by k; empty for
      an exact index, or one without vectors.
    oldest_step: Checkpoint step that the oldest vector was embedded with.
    embed_seconds: Time for embedding, without the work of killed builders.
    files: All files but the manifest, relative to `folder`.
    folder: Directory of the files, relative to the snapshot's directory.
    index_folder: Directory of the index's files, relative to `folder`.
    model: Checksum of the model's settings and the names and shapes of its
      parameters.
    index_report: Choices and measurements of the index's build.
    created: Time of publication, in UTC.
  """

  step: int
  corpus_fingerprint: str
  corpus_version: int
  num_blocks: int
  dim: int
  dtype: StoredDtype
  index_kind: str
  index_parameters: Mapping[str, JsonValue]
  recall: dict[str, float]
  recall_queries: int
  embed_seconds: float
  build_seconds: float
  oldest_step: int
  files: tuple[FileRecord, ...]
  folder: str
  index_folder: str
  model: str = ""
  index_report: Mapping[str, JsonValue] = dataclasses.field(
    default_factory=dict
  )
  created: str = ""
  format_version: int = FORMAT_VERSION

  def to_json(self) -> str:
    """Returns the contents of the manifest file."""
    return to_checked_json(dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text: bytes, path: epath.PathLike) -> "Manifest":
    """Parses the contents of a manifest file.

    Raises:
      SnapshotError: The manifest has another format version.
      DamagedSnapshotError: The manifest is not valid.
    """
    try:
      values = from_checked_json(text)
      if (version := values["format_version"]) == FORMAT_VERSION:
        files = tuple(FileRecord(**file) for file in values.pop("files"))
        manifest = cls(files=files, **values)
        for one in (manifest, *files):
          require_valid(one)
        for folder in (manifest.folder, manifest.index_folder):
          require_below(folder)
        return manifest
    except (ValueError, KeyError, TypeError) as error:
      raise DamagedSnapshotError(
        f"{path} is not a manifest ({error!r}){REMEDY}"
      ) from error
    raise SnapshotError(
      f"{path} has format version {version}, and this program reads "
      f"{FORMAT_VERSION}; use the realm_jax that wrote it, or make it again"
    )


def to_checked_json(values: Mapping[str, JsonValue]) -> str:
  """Returns JSON text that includes a checksum of its values."""
  values = {**values, _CHECKSUM_KEY: json_checksum(values)}
  return json.dumps(values, indent=2) + "\n"


def from_checked_json(text: str | bytes) -> dict[str, Any]:
  """Parses the text of `to_checked_json`, and verifies its checksum.

  Raises:
    ValueError, KeyError: The text is damaged.
  """
  values = json.loads(text)
  if values.pop(_CHECKSUM_KEY) != json_checksum(values):
    raise RealmError("it does not match its own checksum")
  return values


def json_checksum(values: Mapping[str, JsonValue]) -> str:
  """Returns the SHA-256 of JSON values."""
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
