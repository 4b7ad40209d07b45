"""Files and directories that survive a crash of the machine."""

import os
from pathlib import Path


def sync(path: Path) -> None:
  """Writes a file, or the names in a directory, from memory to the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def sync_tree(directory: Path) -> None:
  """Writes all files and directories below a directory to the disk."""
  for path in directory.rglob("*"):
    sync(path)
  sync(directory)
