"""JSON Lines, which the commands read and write."""

import json
from collections.abc import Iterable
from pathlib import Path


def read_lines(path: Path) -> list[dict]:
  """The objects of a file, one a line."""
  return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write_lines(path: Path, rows: Iterable[dict]) -> Path:
  """Writes objects, one a line; returns the file."""
  lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
  path.write_text("".join(lines), "utf-8")
  return path
