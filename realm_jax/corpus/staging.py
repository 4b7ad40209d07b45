"""Local copies of corpora on object stores, since only files can be mapped."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from absl import logging
from etils import epath

from realm_jax.corpus import versions
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.manifest import Manifest, files_of, write_manifest
from realm_jax.corpus.shards import format as shard_format
from realm_jax.files.checksum import sha256_of
from realm_jax.files.remote import is_remote

# Environment variable that names another cache than the one at home.
CACHE_DIR_VARIABLE = "REALM_JAX_CACHE_DIR"


def local_copy(directory: epath.Path, manifest: Manifest) -> epath.Path:
  """Returns a local directory as it is, else that of a copy of one version."""
  if not is_remote(directory):
    return directory
  default = Path.home() / ".cache" / "realm_jax"
  cache = Path(os.environ.get(CACHE_DIR_VARIABLE, default))
  return stage(directory, manifest, cache / "corpora")


def stage(directory: epath.Path, manifest: Manifest, cache: Path) -> epath.Path:
  """Copies a version into `cache`, unless it is there already.

  The copy is renamed when it is complete, so that processes may race for it.
  Files that another copy has are linked, so that an update costs what is new.

  Raises:
    CorpusError: A file does not match the manifest.
  """
  # The fingerprint does not include the version, which the manifest has.
  name = f"{manifest['fingerprint']}-{manifest['corpus_version']}"
  target = cache / name
  if target.is_dir():
    return epath.Path(target)
  logging.info("Copying the corpus of %s to %s", directory, target)
  cache.mkdir(parents=True, exist_ok=True)
  partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=cache))
  try:
    _copy(directory, manifest, partial)
    try:
      partial.rename(target)
    except OSError:
      if not target.is_dir():  # If it is, another process was first.
        raise
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  return epath.Path(target)


def _copy(directory: epath.Path, manifest: Manifest, partial: Path) -> None:
  """Copies or links all files of a version, and verifies what it copies."""
  staged = _staged_files(partial.parent)
  for file, record in files_of(manifest).items():
    copy = partial / file
    copy.parent.mkdir(parents=True, exist_ok=True)
    if record["sha256"] in staged:
      # It may be removed meanwhile, and not all file systems have links.
      with contextlib.suppress(OSError):
        os.link(staged[record["sha256"]], copy)
      # The checksum of a linked file was verified when it was copied.
      if copy.exists() and copy.stat().st_size == record["bytes"]:
        continue
      copy.unlink(missing_ok=True)
    (directory / file).copy(epath.Path(copy))
    if sha256_of(copy) != record["sha256"]:
      raise _damaged(directory / file)
  vocabulary = partial / shard_format.VOCABULARY_NAME
  (directory / vocabulary.name).copy(epath.Path(vocabulary))
  # The hash of record is that of the pieces, without the last line's end.
  pieces = vocabulary.read_bytes().removesuffix(b"\n")
  if hashlib.sha256(pieces).hexdigest() != manifest["vocabulary"]["sha256"]:
    raise _damaged(directory / vocabulary.name)
  write_manifest(partial / shard_format.MANIFEST_NAME, manifest)


def _damaged(path: epath.Path) -> CorpusError:
  return CorpusError(
    f"{path} does not match its manifest, or was not copied whole; try again, "
    "and build the corpus again if that does not help"
  )


def _staged_files(cache: Path) -> dict[str, Path]:
  """Returns the files of all copies, by checksum."""
  files: dict[str, Path] = {}
  for path in cache.glob(f"*/{shard_format.MANIFEST_NAME}"):
    try:
      manifest = versions.parse(epath.Path(path))
    except CorpusError:
      continue  # Another program wrote it, or it is being removed.
    for name, record in files_of(manifest).items():
      files[record["sha256"]] = path.parent / name
  return files
