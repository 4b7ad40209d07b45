"""Paths on object stores."""

from etils import epath


def is_remote(path: epath.PathLike) -> bool:
  """Returns whether a path is on an object store, such as `gs://bucket/run`.

  An object store can neither rename a directory, nor lock a file, nor map one
  into memory.
  """
  return "://" in str(path)
