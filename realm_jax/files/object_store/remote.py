"""Paths on object stores, and what costs there one request.

epath's own ways ask two or three times: a name may be an object or a folder.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import fsspec
from etils import epath

# Each request waits for its answer. An upload has at most 50 MiB in memory.
COPIED_AT_ONCE = 8

# Imported when the first path of such a kind is used.
for _protocol in ("gs", "gcs"):
  fsspec.register_implementation(
    _protocol,
    "realm_jax.files.object_store.gcs_client.GcsClient",
    clobber=True,
    errtxt="gs:// needs gcsfs: pip install 'realm_jax[gcs]'",
  )


def is_remote(path: epath.PathLike) -> bool:
  """Returns whether a path is on an object store, such as `gs://bucket/run`.

  An object store can neither rename a directory, nor lock a file, nor map one
  into memory.
  """
  return "://" in str(path)


class ObjectInfo(NamedTuple):
  """What a listing says of an object.

  Attributes:
    bytes: Size of the object.
    generation: Another one whenever the object is written.
  """

  bytes: int
  generation: str


def read_bytes(path: epath.PathLike) -> bytes:
  """Returns what a file holds; an object store is asked once.

  Raises:
    FileNotFoundError: There is no such file.
  """
  if not is_remote(path):
    return Path(path).read_bytes()
  client, name = fsspec.url_to_fs(str(path))
  return client.cat_file(name)


def read_text(path: epath.PathLike) -> str:
  """Returns the text of a file; an object store is asked once.

  Raises:
    FileNotFoundError: There is no such file.
    UnicodeDecodeError: It is not in UTF-8.
  """
  return read_bytes(path).decode()


def objects_below(folder: epath.PathLike) -> dict[str, ObjectInfo]:
  """Returns all objects below a folder by their relative paths, sorted.

  It costs a request for each thousand of them, and two where there are none.
  """
  client, name = fsspec.url_to_fs(str(folder).rstrip("/") + "/")
  prefix = name.rstrip("/") + "/"
  found = client.find(prefix, detail=True)
  return {
    path.removeprefix(prefix): ObjectInfo(
      info["size"], str(info.get("generation", info.get("mtime")))
    )
    for path, info in sorted(found.items())
    if path.startswith(prefix) and path != prefix
  }


def upload(source: Path, target: epath.PathLike) -> None:
  """Writes a local file to an object store, where it appears whole or not.

  epath's `copy` and `open` commit what they have written when they fail.
  """
  client, name = fsspec.url_to_fs(str(target))
  client.put_file(str(source), name)


def upload_files(
  directory: Path, paths: Iterable[str], folder: epath.PathLike
) -> None:
  """Writes files of a local directory to an object store, several at once.

  After an error, which is raised, no other upload begins.
  """

  def copy(path: str) -> None:
    upload(directory / path, epath.Path(folder) / path)

  with ThreadPoolExecutor(COPIED_AT_ONCE) as pool:
    list(pool.map(copy, paths))


def download(source: epath.PathLike, target: Path) -> None:
  """Copies an object into a local file, in large parts at once.

  Raises:
    FileNotFoundError: There is no such object.
  """
  client, name = fsspec.url_to_fs(str(source))
  client.get_file(name, str(target))


def copy_object(source: epath.PathLike, target: epath.PathLike) -> None:
  """Copies an object within an object store, which moves no bytes to here.

  Raises:
    FileNotFoundError: There is no such object.
  """
  client, name = fsspec.url_to_fs(str(source))
  client.cp_file(name, fsspec.url_to_fs(str(target))[1])
