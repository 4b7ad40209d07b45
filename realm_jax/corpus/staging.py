"""Corpora on object stores: copied here, since only files can be mapped."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from absl import logging
from etils import epath

from realm_jax.corpus import shard_format

# Names another place than the home directory for what is copied.
CACHE_DIR_VARIABLE = "REALM_JAX_CACHE_DIR"


def cache_dir() -> Path:
  """Where corpora of object stores are kept."""
  default = Path.home() / ".cache" / "realm_jax"
  return Path(os.environ.get(CACHE_DIR_VARIABLE, default)) / "corpora"


def local_copy(directory: epath.PathLike) -> epath.Path:
  """The directory itself where it is local, else a copy of it that is."""
  directory = epath.Path(directory)
  manifest = directory / shard_format.MANIFEST_NAME
  if "://" not in str(directory) or not manifest.is_file():
    return directory
  return stage(directory, cache_dir())


def stage(directory: epath.Path, cache: Path) -> epath.Path:
  """Copies a corpus into `cache`, named by its fingerprint, unless it is there.

  The copy gets its name when it is complete, so processes may race for it.
  """
  manifest = json.loads((directory / shard_format.MANIFEST_NAME).read_text())
  # The version is not in the fingerprint, and is in the manifest.
  name = f"{manifest['fingerprint']}-{manifest['corpus_version']}"
  target = cache / name
  if target.is_dir():
    return epath.Path(target)
  logging.info("Copying the corpus of %s to %s", directory, target)
  cache.mkdir(parents=True, exist_ok=True)
  partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=cache))
  files = [shard_format.MANIFEST_NAME, shard_format.VOCABULARY_NAME]
  for shard in manifest["shards"]:
    files += [f"{shard['name']}/{name}" for name in shard["files"]]
  for file in files:
    copy = epath.Path(partial / file)
    copy.parent.mkdir(parents=True, exist_ok=True)
    (directory / file).copy(copy)
  try:
    partial.rename(target)
  except OSError:
    if not target.is_dir():
      raise
    shutil.rmtree(partial)  # Another process was first.
  return epath.Path(target)
