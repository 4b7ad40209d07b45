"""The manifests of a corpus directory, one for each version.

    corpus.json          manifest of the newest version, written last
    vocab.txt, vocab.json    the vocabulary, or tokenizer.json: see
                             `text.vocabulary_files`
    views/t5.model       vocabulary of a view: see `views.py`
    shard-00000/*.npy    arrays of documents and blocks: see `shard.py`

An update adds files and changes only `corpus.json`:

    shard-v00000002-00000/*.npy     documents that came with version 2
    removed/v00000002-shard-00000.npy
                         sorted positions, int64, of a shard's blocks that were
                         removed in version 2 or before
    versions/00000001.json          manifest of an earlier version

A manifest has

    format_version, corpus_version, fingerprint
    name                 part of each block's id
    block_length, language (English if it is missing)
    drop_titles, fields  texts of the title filter, and names of the fields that
                         are kept, also in later updates
    vocabulary           sha256, size, and special_ids by name: {"cls": 2, …}
    num_blocks, num_documents, num_tokens
    summary              counts of the build or update
    views                by name: path, bytes and sha256 of the view's model,
                         and the size of its vocabulary
    links                source of links, also in later updates
    shards               a list of shards

A shard has

    name, num_blocks, num_documents, num_tokens
    span_kinds           names of the kinds of salient spans
    relations            names of the relations of links, if any
    files                by name: bytes and sha256
    removed              path, bytes and sha256 of the list of removed blocks,
                         with their counts, if any
    views                files of views, by name of the view
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from etils import epath

from realm_jax.corpus import CorpusError
from realm_jax.storage.paths import list_names, read_text
from realm_jax.storage.staging import FileRecord, require_below

FORMAT_VERSION = 4
MANIFEST_NAME = "corpus.json"
REMOVED = "removed"
VIEWS = "views"
VERSIONS = "versions"
_COUNTS = ("num_blocks", "num_documents", "num_tokens")

Manifest: TypeAlias = dict[str, Any]
ShardRecord: TypeAlias = dict[str, Any]


def completed(settings: Mapping[str, Any]) -> Manifest:
  """Returns the manifest of a version, with its totals and fingerprint.

  `settings` has all other entries, from an earlier version or new.
  """
  nothing, shards = dict.fromkeys(_COUNTS, 0), settings["shards"]
  totals = {
    count: sum(s[count] - s.get("removed", nothing)[count] for s in shards)
    for count in _COUNTS
  }
  # The fingerprint covers all texts and arrays, but not the version: the same
  # documents, built with the same settings, have the same fingerprint.
  files: list[dict[str, Any]] = []
  for shard in shards:
    files.append({**shard["files"], "span_kinds": shard["span_kinds"]})
    if "relations" in shard:
      files[-1]["relations"] = shard["relations"]
    if "removed" in shard:
      files[-1]["removed"] = shard["removed"]["sha256"]
  identity = {
    "format_version": FORMAT_VERSION,
    "block_length": settings["block_length"],
    "vocabulary": settings["vocabulary"]["sha256"],
    "files": files,
  }
  text = json.dumps(identity, sort_keys=True)
  fingerprint = hashlib.sha256(text.encode()).hexdigest()
  version = {"format_version": FORMAT_VERSION, "fingerprint": fingerprint}
  return {**settings, **totals, **version}


def read(
  directory: epath.Path,
  *,
  version: int | None = None,
  fingerprint: str | None = None,
) -> Manifest:
  """Reads the manifest of a version, by default the newest.

  Raises:
    CorpusError: There is no corpus, it has no such version, or the manifest
      is damaged or has another format.
  """
  newest = manifest = _parse(directory / MANIFEST_NAME)
  if newest is None:
    raise CorpusError(
      f"no corpus in {directory}: it has no {MANIFEST_NAME}; build one with "
      f"python -m realm_jax.build_corpus --output_dir={directory}, or pass "
      "--corpus_dir if it is elsewhere"
    )
  if version is not None and version != newest["corpus_version"]:
    manifest = _parse(directory / manifest_path(version))
  if manifest is not None and fingerprint in (None, manifest["fingerprint"]):
    return manifest
  known = [*earlier_versions(directory), newest["corpus_version"]]
  named = f" (fingerprint {fingerprint[:12]})" if fingerprint else ""
  raise CorpusError(
    f"{directory} has no corpus version {version}{named}: it was "
    f"removed, or the corpus was built again; it has versions {known}"
  )


def manifest_path(version: int) -> str:
  """Returns the path of a version's manifest, once there is a newer version."""
  return f"{VERSIONS}/{version:08d}.json"


def earlier_versions(directory: epath.Path) -> list[int]:
  """Returns the versions before the newest, in order."""
  names = list_names(directory / VERSIONS)
  stems = (name.removesuffix(".json") for name in names)
  return sorted(int(stem) for stem in stems if stem.isdecimal())


def files_of(manifest: Manifest) -> list[FileRecord]:
  """Returns the records of all files of arrays, and of the views' models.

  Raises:
    DamagedFileError: A path leads out of the corpus.
  """
  models = manifest.get("views", {}).values()
  files: dict[str, Any] = {model["path"]: model for model in models}
  for shard in manifest["shards"]:
    require_below(shard["name"])
    for arrays in (shard["files"], *shard.get("views", {}).values()):
      for name, record in arrays.items():
        files[f"{shard['name']}/{name}"] = record
    if "removed" in shard:
      files[shard["removed"]["path"]] = shard["removed"]
  return [FileRecord.from_entry(*file) for file in files.items()]


def _parse(path: epath.Path) -> Manifest | None:
  """Reads a manifest; returns None if there is no such file.

  Raises:
    CorpusError: The manifest is damaged, or of an unknown format.
  """
  advice = "build the corpus again"
  if path.parent.name == VERSIONS:
    advice = f"remove it: only version {path.stem} is lost with it"
  try:
    manifest: Manifest = json.loads(read_text(path))
    format_version = manifest["format_version"]
    if format_version == FORMAT_VERSION:
      files_of(manifest)
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise CorpusError(f"{path} is damaged ({error!r}); {advice}") from error
  if format_version != FORMAT_VERSION:
    raise CorpusError(
      f"{path} has format version {format_version}, and this program reads "
      f"{FORMAT_VERSION}; {advice}"
    )
  return manifest
