"""The manifests of a corpus directory, one for each version.

    corpus.json          manifest of the newest version, written last
    vocab.txt
    shard-00000/*.npy    arrays of documents and blocks: see `shard.py`

An update adds files and changes none but `corpus.json`:

    shard-v00000002-00000/*.npy     documents that came with version 2
    removed/v00000002-shard-00000.npy
                         sorted positions of the blocks of a shard that were
                         removed in version 2 or before, int64
    versions/00000001.json          manifest of an earlier version
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict, cast

from etils import epath

from realm_jax.corpus import CorpusError
from realm_jax.storage.json_files import JsonValue, write_json
from realm_jax.storage.paths import list_names, read_text
from realm_jax.text.languages import ENGLISH

FORMAT_VERSION = 4
MANIFEST_NAME = "corpus.json"
VOCABULARY_NAME = "vocab.txt"
REMOVED = "removed"
VERSIONS = "versions"


class FileRecord(TypedDict):
  """Size and checksum of a file."""

  bytes: int
  sha256: str


class Counts(TypedDict):
  """Sizes of a shard or a corpus."""

  num_blocks: int
  num_documents: int
  num_tokens: int


class RemovedRecord(FileRecord, Counts):
  """The file that lists a shard's removed blocks, and how many they are."""

  path: str


class ShardRecord(Counts):
  """A shard: its folder, its files by name, and its kinds of salient spans.

  `span_kinds[i]` is the name of kind i, in the order in which the shard's spans
  have them.
  """

  name: str
  files: dict[str, FileRecord]
  span_kinds: list[str]
  removed: NotRequired[RemovedRecord]


class VocabularyRecord(TypedDict):
  """The vocabulary that a corpus was built with."""

  sha256: str
  size: int
  special_ids: dict[str, int]


class Manifest(Counts):
  """One version of a corpus.

  `name` is part of each block's id, and `drop_titles` has the patterns of
  titles that were left out. `language` is there unless it is English.
  """

  format_version: int
  corpus_version: int
  name: str
  block_length: int
  vocabulary: VocabularyRecord
  summary: Mapping[str, JsonValue]
  drop_titles: list[str]
  language: NotRequired[str]
  shards: list[ShardRecord]
  fingerprint: str


def make_manifest(
  *,
  name: str,
  block_length: int,
  vocabulary: VocabularyRecord,
  shards: list[ShardRecord],
  summary: Mapping[str, JsonValue],
  drop_titles: Sequence[str] = (),
  language: str = ENGLISH,
  version: int = 1,
) -> Manifest:
  """Makes the manifest of a version, with its totals and fingerprint.

  `drop_titles` are the texts of the title filter, which later updates apply.
  """
  removed = [shard["removed"] for shard in shards if "removed" in shard]

  def total(
    count: Literal["num_blocks", "num_documents", "num_tokens"],
  ) -> int:
    return sum(s[count] for s in shards) - sum(r[count] for r in removed)

  # All that a reader sees, texts and arrays alike, and not the version: the
  # same documents, built with the same settings, have the same fingerprint.
  files = [
    {
      **shard["files"],
      "span_kinds": shard["span_kinds"],
      **({"removed": shard["removed"]["sha256"]} if "removed" in shard else {}),
    }
    for shard in shards
  ]
  identity = {
    "format_version": FORMAT_VERSION,
    "block_length": block_length,
    "vocabulary": vocabulary["sha256"],
    "files": files,
  }
  text = json.dumps(identity, sort_keys=True)
  manifest = Manifest(
    format_version=FORMAT_VERSION,
    corpus_version=version,
    name=name,
    block_length=block_length,
    vocabulary=vocabulary,
    num_blocks=total("num_blocks"),
    num_documents=total("num_documents"),
    num_tokens=total("num_tokens"),
    summary=summary,
    drop_titles=list(drop_titles),
    shards=shards,
    fingerprint=hashlib.sha256(text.encode()).hexdigest(),
  )
  if language != ENGLISH:
    manifest["language"] = language
  return manifest


def write(path: epath.PathLike, manifest: Manifest) -> None:
  """Replaces a manifest's file, which appears complete or not at all."""
  write_json(path, cast(Mapping[str, JsonValue], manifest))


def read(
  directory: epath.Path,
  *,
  version: int | None = None,
  fingerprint: str | None = None,
) -> Manifest:
  """Reads the manifest of a version; without arguments, of the newest.

  Raises:
    CorpusError: There is no corpus, it has no such version, or the manifest
      is damaged or has another format.
  """
  newest = _parse(directory / MANIFEST_NAME)
  if newest is None:
    raise CorpusError(
      f"no corpus in {directory}: it has no {MANIFEST_NAME}; build one with "
      f"python -m realm_jax.build_corpus --output_dir={directory}"
    )

  def is_wanted(found: Manifest) -> bool:
    return version in (None, found["corpus_version"]) and (
      fingerprint in (None, found["fingerprint"])
    )

  if is_wanted(newest):
    return newest
  # Listed only now: an update may just have added the newest of them.
  earlier = earlier_versions(directory)
  for number in reversed(earlier):
    if version in (None, number):
      found = _parse(directory / manifest_path(number))
      if found is not None and is_wanted(found):
        return found
  known = sorted({*earlier, newest["corpus_version"]})
  wanted = "" if version is None else f" version {version}"
  named = f" (fingerprint {fingerprint[:12]})" if fingerprint else ""
  raise CorpusError(
    f"{directory} has no corpus{wanted}{named}: it was pruned, or the corpus "
    f"was built again; it has versions {known}"
  )


def manifest_path(version: int) -> str:
  """Returns the file of a version's manifest once there is a newer one."""
  return f"{VERSIONS}/{version:08d}.json"


def earlier_versions(directory: epath.Path) -> list[int]:
  """Returns the versions before the newest, in order."""
  names = list_names(directory / VERSIONS)
  stems = (name.removesuffix(".json") for name in names)
  return sorted(int(stem) for stem in stems if stem.isdecimal())


def files_of(manifest: Manifest) -> dict[str, FileRecord]:
  """Returns the record of every file of arrays, by its path."""
  files: dict[str, FileRecord] = {}
  for shard in manifest["shards"]:
    for name, record in shard["files"].items():
      files[f"{shard['name']}/{name}"] = record
    if "removed" in shard:
      files[shard["removed"]["path"]] = shard["removed"]
  return files


def _parse(path: epath.Path) -> Manifest | None:
  """Reads a manifest; returns None if there is no such file.

  Raises:
    CorpusError: It is damaged, or has a format that this program cannot read.
  """
  advice = "build the corpus again"
  if path.parent.name == VERSIONS:
    advice = f"remove it: only version {path.stem} is lost with it"
  try:
    manifest: Manifest = json.loads(read_text(path))
    format_version = manifest["format_version"]
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise CorpusError(f"{path} is damaged ({error!r}); {advice}") from error
  if format_version != FORMAT_VERSION:
    raise CorpusError(
      f"{path} has format version {format_version}, and this program reads "
      f"{FORMAT_VERSION}; {advice}"
    )
  return manifest
