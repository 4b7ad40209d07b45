"""Reads JSON Lines."""

import json
from pathlib import Path


def read_lines(path: Path) -> list[dict]:
  """The objects of a file, one a line."""
  return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
