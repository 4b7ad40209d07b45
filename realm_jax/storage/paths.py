"""Paths on a disk or on an object store, with few requests to the store.

epath's own functions for reading and listing make two or three requests to an
object store, because a name may be an object or a folder; these make one.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
from etils import epath

# Number of files to copy at once, because each request waits for a response. An
# upload has at most 50 MiB in memory.
COPIED_AT_ONCE = 8

# Imported when the first such path is used.
for _protocol in ("gs", "gcs"):
  fsspec.register_implementation(
    _protocol,
    "realm_jax.storage.gcs_client.GcsClient",
    clobber=True,
    errtxt="gs:// needs gcsfs: pip install 'realm_jax[gcs]'",
  )


def is_remote(path: epath.PathLike) -> bool:
  """Returns whether a path is on an object store, such as `gs://bucket/run`.

  An object store can neither rename a directory, nor lock a file, nor map one
  into memory.
  """
  return "://" in str(path)


def read_bytes(path: epath.PathLike) -> bytes:
  """Returns a file's contents, or raises a `FileNotFoundError`."""
  client, name = fsspec.url_to_fs(str(path))
  return client.cat_file(name)


def read_text(path: epath.PathLike) -> str:
  """Returns the text of a UTF-8 file, or raises a `FileNotFoundError`."""
  return read_bytes(path).decode()


def list_names(directory: epath.PathLike) -> list[str]:
  """Returns the sorted names in a directory; empty if it is missing."""
  client, folder = fsspec.url_to_fs(str(directory).rstrip("/"))
  try:
    paths = client.ls(folder, detail=False)
  except (FileNotFoundError, NotADirectoryError):
    return []
  names = {name.rstrip("/").removeprefix(f"{folder}/") for name in paths}
  # A store may list the directory itself, as an empty object.
  return sorted(name for name in names if name and "/" not in name)


def sizes_below(folder: epath.PathLike) -> dict[str, int]:
  """Returns the sizes of all files below a folder, by relative path."""
  client, name = fsspec.url_to_fs(str(folder))
  prefix = name.rstrip("/") + "/"
  files = client.find(prefix, detail=True)
  return {
    path.removeprefix(prefix): info["size"] for path, info in files.items()
  }


def version_of(path: epath.PathLike) -> str | None:
  """Returns a string that changes with each write of a file, or None."""
  client, name = fsspec.url_to_fs(str(path))
  try:
    info = client.info(name)
  except (FileNotFoundError, NotADirectoryError):
    return None
  return " ".join(str(info.get(k)) for k in ("generation", "ino", "mtime"))


def upload(source: Path, target: epath.PathLike) -> None:
  """Writes a local file to an object store, where it appears whole or not.

  epath's `copy` and `open` commit partial data when they fail.
  """
  client, name = fsspec.url_to_fs(str(target))
  client.put_file(str(source), name)


def upload_directory(
  source: Path, target: epath.PathLike, *, last: str | None = None
) -> None:
  """Copies all files below a local directory to an object store.

  `last`, relative to `source`, is the file that makes the target valid; it is
  written after all others.
  """
  files = (path for path in source.rglob("*") if path.is_file())
  paths = {path.relative_to(source).as_posix() for path in files}

  def copy(path: str) -> None:
    upload(source / path, epath.Path(target) / path)

  with ThreadPoolExecutor(COPIED_AT_ONCE) as pool:
    list(pool.map(copy, sorted(paths - {last})))
  if last in paths:
    copy(last)


def download(source: epath.PathLike, target: Path) -> None:
  """Copies an object into a local file, or raises a `FileNotFoundError`."""
  client, name = fsspec.url_to_fs(str(source))
  client.get_file(name, str(target))
