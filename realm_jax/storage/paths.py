"""Paths on a disk or on an object store, and requests that cost little there.

epath's own ways to read and to list ask an object store two or three times for
what these functions ask once: a name may be an object or a folder.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
from etils import epath

# Each request waits for its answer. An upload has at most 50 MiB in memory.
COPIED_AT_ONCE = 8

# Imported when the first path of such a kind is used.
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
  """Returns what a file holds, or raises a `FileNotFoundError`."""
  client, name = fsspec.url_to_fs(str(path))
  return client.cat_file(name)


def read_text(path: epath.PathLike) -> str:
  """Returns the text of a file in UTF-8; see `read_bytes`."""
  return read_bytes(path).decode()


def list_names(directory: epath.PathLike) -> list[str]:
  """Returns the names in a directory, sorted; none if there is no directory."""
  client, folder = fsspec.url_to_fs(str(directory).rstrip("/"))
  try:
    found = client.ls(folder, detail=False)
  except (FileNotFoundError, NotADirectoryError):
    return []
  names = {name.rstrip("/").removeprefix(f"{folder}/") for name in found}
  # A store may list the directory itself, as an empty object.
  return sorted(name for name in names if name and "/" not in name)


def sizes_below(folder: epath.PathLike) -> dict[str, int]:
  """Returns the bytes of all files below a folder, by their relative paths."""
  client, name = fsspec.url_to_fs(str(folder))
  prefix = name.rstrip("/") + "/"
  found = client.find(prefix, detail=True)
  return {
    path.removeprefix(prefix): info["size"] for path, info in found.items()
  }


def version_of(path: epath.PathLike) -> str | None:
  """Returns a text that changes with each write of a file; None without one."""
  client, name = fsspec.url_to_fs(str(path))
  try:
    info = client.info(name)
  except (FileNotFoundError, NotADirectoryError):
    return None
  return " ".join(str(info.get(k)) for k in ("generation", "ino", "mtime"))


def upload(source: Path, target: epath.PathLike) -> None:
  """Writes a local file to an object store, where it appears whole or not.

  epath's `copy` and `open` commit what they have written when they fail.
  """
  client, name = fsspec.url_to_fs(str(target))
  client.put_file(str(source), name)


def upload_directory(
  source: Path, target: epath.PathLike, *, last: str | None = None
) -> None:
  """Copies all files below a local directory to an object store.

  `last`, relative to `source`, is the file that makes the target valid: it is
  written when all others are there.
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
