"""What stands in a directory, and whether a file has changed, by one request.

epath asks an object store two or three times for what these ask once.
"""

import os
from pathlib import Path
from typing import Any

import fsspec
from etils import epath

from realm_jax.files.object_store.remote import is_remote


def names_in(directory: epath.PathLike) -> list[str]:
  """Returns the names in a directory, sorted; none if there is no directory."""
  if not is_remote(directory):
    try:
      return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
      return []
  return sorted(_listed(directory))


def version_of(path: epath.PathLike) -> str | None:
  """Returns a text that changes whenever a file is written; None without one.

  A file that is only read keeps it, so that what was read can be kept, too.
  """
  if not is_remote(path):
    try:
      status = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
      return None
    return f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
  # A request for the object itself would be repeated for a folder of its name.
  file = epath.Path(path)
  listed = _listed(file.parent).get(file.name)
  return None if listed is None else str(listed.get("generation"))


def _listed(directory: epath.PathLike) -> dict[str, dict[str, Any]]:
  """Returns what an object store says of the names in a directory."""
  client, folder = fsspec.url_to_fs(str(directory))
  folder = folder.rstrip("/")
  try:
    found = client.ls(folder, detail=True, refresh=True)
  except FileNotFoundError:
    return {}
  by_name = {
    info["name"].rstrip("/").removeprefix(f"{folder}/"): info for info in found
  }
  # A store may list the directory itself, as an empty object.
  return {n: info for n, info in by_name.items() if n and "/" not in n}


def storage_time(path: epath.PathLike) -> float | None:
  """Returns when a file was written by its storage's own clock, in seconds.

  The clocks of hosts may be minutes apart. Times of one storage can be compared
  with each other, and with nothing else.
  """
  try:
    if not is_remote(path):
      return Path(path).stat().st_mtime
    client, name = fsspec.url_to_fs(str(path))
    return client.modified(name).timestamp()
  except FileNotFoundError:
    return None
