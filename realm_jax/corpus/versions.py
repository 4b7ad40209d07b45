"""The manifests of a corpus directory: the newest version's, and earlier ones.

`corpus.json` is the newest version's; an update keeps what it was as
`versions/<version>.json` before it replaces it.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from etils import epath

from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.shards import format as shard_format

Manifest = dict[str, Any]
_READABLE = (shard_format.FORMAT_VERSION, shard_format.FORMAT_WITH_REMOVED)


class RemovedVersionError(CorpusError):
  """A version that was removed between being listed and being read."""


def files_of(manifest: Manifest) -> dict[str, dict[str, Any]]:
  """Size and checksum of every file of arrays, by its path."""
  files = {}
  for shard in manifest["shards"]:
    for name, record in shard["files"].items():
      files[f"{shard['name']}/{name}"] = record
    if removed := shard.get("removed"):
      files[removed["path"]] = removed
  return files


def read(
  directory: epath.Path,
  *,
  version: int | None = None,
  fingerprint: str | None = None,
) -> Manifest:
  """The manifest of a version; the newest where nothing says which.

  Raises:
    CorpusError: there is no corpus here, not this version of it, or its
      manifest is damaged or of another format.
  """
  path = directory / shard_format.MANIFEST_NAME
  if not path.is_file():
    raise CorpusError(
      f"no corpus in {directory}: it has no {path.name}; build one with "
      f"python -m realm_jax.build_corpus --output_dir={directory}"
    )
  known = []
  for manifest in _newest_first(directory, version):
    known.append(manifest["corpus_version"])
    if version in (None, manifest["corpus_version"]) and fingerprint in (
      None,
      manifest["fingerprint"],
    ):
      return manifest
  wanted = "" if version is None else f" version {version}"
  named = f" (fingerprint {fingerprint[:12]})" if fingerprint else ""
  raise CorpusError(
    f"{directory} has no corpus{wanted}{named}: it was pruned, or the corpus "
    f"built anew; it has versions {_all_versions(directory, known)}"
  )


def has(directory: epath.Path, version: int, fingerprint: str) -> bool:
  """Whether the directory has this version."""
  try:
    read(directory, version=version, fingerprint=fingerprint)
  except CorpusError:
    return False
  return True


def _newest_first(
  directory: epath.Path, version: int | None
) -> Iterator[Manifest]:
  """The newest version's manifest, then earlier ones (or only `version`'s)."""
  yield parse(directory / shard_format.MANIFEST_NAME)
  for earlier in reversed(earlier_versions(directory)):
    if version in (None, earlier):
      with contextlib.suppress(RemovedVersionError):
        yield parse(directory / shard_format.manifest_path(earlier))


def _all_versions(directory: epath.Path, known: list[int]) -> list[int]:
  return sorted({*known, *earlier_versions(directory)})


def earlier_versions(directory: epath.Path) -> list[int]:
  """The versions whose manifests were kept, in order."""
  folder = directory / shard_format.VERSIONS
  if not folder.exists():
    return []
  stems = (path.stem for path in folder.glob("*.json"))
  return sorted(int(stem) for stem in stems if stem.isdecimal())


def parse(path: epath.Path) -> Manifest:
  """Reads a manifest.

  Raises:
    CorpusError: it is damaged, or of a format that this program cannot read.
    RemovedVersionError: it is not there any more.
  """
  is_earlier = path.parent.name == shard_format.VERSIONS
  try:
    manifest = json.loads(path.read_text())
    format_version = manifest["format_version"]
  except FileNotFoundError as error:
    raise RemovedVersionError(f"{path} was removed meanwhile") from error
  except (OSError, ValueError, KeyError, TypeError) as error:
    advice = "build the corpus again"
    if is_earlier:
      advice = f"remove it: only version {path.stem} is lost with it"
    raise CorpusError(f"{path} is damaged ({error!r}); {advice}") from error
  if format_version not in _READABLE:
    raise CorpusError(
      f"{path} has format version {format_version}, this program reads "
      f"{' and '.join(map(str, _READABLE))}; build the corpus again, or use "
      "the version of realm_jax that built it"
    )
  return manifest
