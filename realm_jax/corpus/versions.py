"""The versions of a corpus in its directory.

`corpus.json` is the manifest of the newest version. An update keeps the
manifest before it as `versions/<version>.json`.
"""

import contextlib
import json

from etils import epath

from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.manifest import Manifest
from realm_jax.corpus.shards import format as shard_format
from realm_jax.files.object_store.remote import read_text


class RemovedVersionError(CorpusError):
  """A version that was removed after it had been listed."""


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
  path = directory / shard_format.MANIFEST_NAME
  if not path.is_file():
    raise CorpusError(
      f"no corpus in {directory}: it has no {path.name}; build one with "
      f"python -m realm_jax.build_corpus --output_dir={directory}"
    )

  def is_wanted(found: Manifest) -> bool:
    return version in (None, found["corpus_version"]) and (
      fingerprint in (None, found["fingerprint"])
    )

  newest = parse(path)
  if is_wanted(newest):
    return newest
  # Listed only now: an update may just have added the newest of them.
  earlier = earlier_versions(directory)
  for number in reversed(earlier):
    if version in (None, number):
      with contextlib.suppress(RemovedVersionError):
        found = parse(directory / shard_format.manifest_path(number))
        if is_wanted(found):
          return found
  known = sorted({*earlier, newest["corpus_version"]})
  wanted = "" if version is None else f" version {version}"
  named = f" (fingerprint {fingerprint[:12]})" if fingerprint else ""
  raise CorpusError(
    f"{directory} has no corpus{wanted}{named}: it was pruned, or the corpus "
    f"was built again; it has versions {known}"
  )


def every(directory: epath.Path) -> dict[int, Manifest]:
  """Reads the manifests of all versions, by number."""
  manifests = [read(directory)]
  for version in earlier_versions(directory):
    manifests.append(parse(directory / shard_format.manifest_path(version)))
  return {manifest["corpus_version"]: manifest for manifest in manifests}


def earlier_versions(directory: epath.Path) -> list[int]:
  """Returns the versions before the newest, in order."""
  folder = directory / shard_format.VERSIONS
  if not folder.exists():
    return []
  stems = (path.stem for path in folder.glob("*.json"))
  return sorted(int(stem) for stem in stems if stem.isdecimal())


def parse(path: epath.Path) -> Manifest:
  """Reads a manifest.

  Raises:
    CorpusError: It is damaged, or has a format that this program cannot read.
    RemovedVersionError: The file has been removed.
  """
  try:
    manifest: Manifest = json.loads(read_text(path))
    format_version = manifest["format_version"]
  except FileNotFoundError as error:
    raise RemovedVersionError(f"{path} has been removed") from error
  except (OSError, ValueError, KeyError, TypeError) as error:
    advice = "build the corpus again"
    if path.parent.name == shard_format.VERSIONS:
      advice = f"remove it: only version {path.stem} is lost with it"
    raise CorpusError(f"{path} is damaged ({error!r}); {advice}") from error
  if format_version != shard_format.FORMAT_VERSION:
    raise CorpusError(_another_format(path, manifest))
  return manifest


def _another_format(path: epath.Path, manifest: Manifest) -> str:
  """Says that a manifest cannot be read, and how to build the corpus again."""
  found = (
    f"{path} has format version {manifest['format_version']}, and this program "
    f"reads {shard_format.FORMAT_VERSION}"
  )
  if path.parent.name == shard_format.VERSIONS:
    return f"{found}; remove it: only version {path.stem} is lost with it"
  directory = path.parent
  vocabulary = directory / shard_format.VOCABULARY_NAME
  length = manifest.get("block_length", 288)
  return (
    f"{found}; build the corpus again from its text: python -m "
    f"realm_jax.build_corpus --input=… --output_dir={directory} "
    f"--vocab={vocabulary} --block_length={length} --overwrite"
  )
