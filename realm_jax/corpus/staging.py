"""Corpora on object stores: copied here, since only files can be mapped."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from absl import logging
from etils import epath

from realm_jax.corpus import versions
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.shards.writer import file_record

# Names another place than the home directory for what is copied.
CACHE_DIR_VARIABLE = "REALM_JAX_CACHE_DIR"


def cache_dir() -> Path:
  """Where corpora of object stores are kept."""
  default = Path.home() / ".cache" / "realm_jax"
  return Path(os.environ.get(CACHE_DIR_VARIABLE, default)) / "corpora"


def local_copy(
  directory: epath.Path, manifest: versions.Manifest
) -> epath.Path:
  """The directory itself where it is local, else a copy of one version."""
  if "://" not in str(directory):
    return directory
  return stage(directory, manifest, cache_dir())


def stage(
  directory: epath.Path, manifest: versions.Manifest, cache: Path
) -> epath.Path:
  """Copies a version into `cache`, by its fingerprint, unless it is there.

  The copy gets its name when it is complete, so processes may race for it.
  What another copy has of the same files is linked, so that an update costs
  what is new.
  """
  # The version is not in the fingerprint, and is in the manifest.
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
      if not target.is_dir():
        raise
      # Another process was first.
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  return epath.Path(target)


def _copy(
  directory: epath.Path, manifest: versions.Manifest, partial: Path
) -> None:
  """Copies or links all files of a version, and holds them against it.

  What is linked was held against its checksum when it was copied.
  """
  staged = _staged_files(partial.parent)
  for file, record in versions.files_of(manifest).items():
    copy = partial / file
    copy.parent.mkdir(parents=True, exist_ok=True)
    if _link(staged.get(record["sha256"]), copy):
      if copy.stat().st_size == record["bytes"]:
        continue
      copy.unlink()
    (directory / file).copy(epath.Path(copy))
    if file_record(copy).items() - record.items():
      raise _damaged(directory / file)
  vocabulary = partial / shard_format.VOCABULARY_NAME
  (directory / vocabulary.name).copy(epath.Path(vocabulary))
  # As the pieces are hashed, of which each is a line.
  pieces = vocabulary.read_bytes().removesuffix(b"\n")
  digest = hashlib.sha256(pieces).hexdigest()
  if digest != manifest["vocabulary"]["sha256"]:
    raise _damaged(directory / vocabulary.name)
  text = json.dumps(manifest, ensure_ascii=False)
  (partial / shard_format.MANIFEST_NAME).write_text(text, encoding="utf-8")


def _damaged(path: epath.Path) -> CorpusError:
  return CorpusError(
    f"{path} is not what its manifest says, or was not copied whole; try "
    "again, and if it stays so, build the corpus again"
  )


def _staged_files(cache: Path) -> dict[str, Path]:
  """The files of all copies, by checksum."""
  files = {}
  for path in cache.glob(f"*/{shard_format.MANIFEST_NAME}"):
    try:
      manifest = versions.parse(epath.Path(path))
    except CorpusError:
      continue  # Of another program, or being removed.
    for name, record in versions.files_of(manifest).items():
      files[record["sha256"]] = path.parent / name
  return files


def _link(source: Path | None, target: Path) -> bool:
  """Whether a file could be had without copying it."""
  if source is None:
    return False
  try:
    os.link(source, target)
  except OSError:
    return False  # Removed meanwhile, or a disk without links.
  return True
