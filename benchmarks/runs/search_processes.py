"""Processes in which runs search an index."""

from pathlib import Path

_SEARCHES = b"realm_jax.indexes.isolated"


def searching(parent: int | None = None) -> dict[int, int]:
  """Returns the processes that search an index, with their parents.

  Args:
    parent: Process whose children to list; None lists all processes.
  """
  found = {}
  for path in Path("/proc").glob("[0-9]*"):
    try:
      stat = path.joinpath("stat").read_text().rpartition(")")[2].split()
      command = path.joinpath("cmdline").read_bytes()
    except OSError:
      continue  # It ended meanwhile.
    if _SEARCHES in command and parent in (None, int(stat[1])):
      found[int(path.name)] = int(stat[1])
  return found
