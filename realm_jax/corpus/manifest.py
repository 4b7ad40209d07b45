"""The contents of `corpus.json`, which describes one version of a corpus."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict, cast

from etils import epath

from realm_jax.corpus.shards import format as shard_format
from realm_jax.files.json_file import JsonValue, write_json

_Count = Literal["num_blocks", "num_documents", "num_tokens"]


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
  titles that were left out.
  """

  format_version: int
  corpus_version: int
  name: str
  block_length: int
  vocabulary: VocabularyRecord
  summary: Mapping[str, JsonValue]
  drop_titles: list[str]
  shards: list[ShardRecord]
  fingerprint: str


def make_manifest(
  *,
  name: str,
  version: int,
  block_length: int,
  vocabulary: VocabularyRecord,
  shards: list[ShardRecord],
  summary: Mapping[str, JsonValue],
  drop_titles: Sequence[str],
) -> Manifest:
  """Makes the manifest of a version, with its totals and fingerprint.

  `drop_titles` are the texts of the title filter, which later updates apply.
  """
  removed = [shard["removed"] for shard in shards if "removed" in shard]

  def total(count: _Count) -> int:
    return sum(s[count] for s in shards) - sum(r[count] for r in removed)

  manifest = Manifest(
    format_version=shard_format.FORMAT_VERSION,
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
    fingerprint="",
  )
  manifest["fingerprint"] = _fingerprint(manifest)
  return manifest


def write_manifest(path: epath.PathLike, manifest: Manifest) -> None:
  """Replaces a manifest's file, which appears complete or not at all."""
  write_json(path, cast(Mapping[str, JsonValue], manifest))


def _fingerprint(manifest: Manifest) -> str:
  """Hashes all that a reader of the corpus sees, texts and arrays alike.

  The version is left out: the same documents, built with the same settings,
  have the same fingerprint whatever the number.
  """
  files: list[dict[str, FileRecord | list[str] | str]] = []
  for shard in manifest["shards"]:
    files.append({**shard["files"], "span_kinds": shard["span_kinds"]})
    if "removed" in shard:
      files[-1]["removed"] = shard["removed"]["sha256"]
  identity = {
    "format_version": manifest["format_version"],
    "block_length": manifest["block_length"],
    "vocabulary": manifest["vocabulary"]["sha256"],
    "files": files,
  }
  text = json.dumps(identity, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def files_of(manifest: Manifest) -> dict[str, FileRecord]:
  """Returns the record of every file of arrays, by its path."""
  files: dict[str, FileRecord] = {}
  for shard in manifest["shards"]:
    for name, record in shard["files"].items():
      files[f"{shard['name']}/{name}"] = record
    if "removed" in shard:
      files[shard["removed"]["path"]] = shard["removed"]
  return files


def paths_of(manifest: Manifest) -> set[str]:
  """Returns the shards' folders and the files that list removed blocks."""
  shards = manifest["shards"]
  removed = {s["removed"]["path"] for s in shards if "removed" in s}
  return {shard["name"] for shard in shards} | removed
