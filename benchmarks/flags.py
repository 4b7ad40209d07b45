"""Flags of the benchmarks, from their defaults."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def parse(
  doc: str | None, argv: Sequence[str] | None = None, **defaults: Any
) -> argparse.Namespace:
  """Parses `--NAME=VALUE` for each default, and `--json=FILE`.

  Args:
    doc: Text that --help shows.
    argv: Arguments; None takes those of the process.
    **defaults: Default of each flag, whose type it has. A type stands for a
      flag that must be given, None for a path that may be, and a tuple for a
      flag with several values.
  """
  parser = argparse.ArgumentParser(
    description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  for name, default in {**defaults, "json": None}.items():
    flag = f"--{name}"
    if isinstance(default, type):
      parser.add_argument(flag, type=default, required=True)
    elif isinstance(default, tuple):
      parser.add_argument(flag, nargs="+", default=default)
    else:
      kind = Path if default is None else type(default)
      parser.add_argument(flag, type=kind, default=default)
  return parser.parse_args(argv)
