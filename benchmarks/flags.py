"""Flags of benchmarks, derived from their defaults."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def parse(
  doc: str | None, argv: Sequence[str] | None = None, **defaults: Any
) -> argparse.Namespace:
  """Parses `--NAME=VALUE` for each default, and `--json=FILE`.

  Args:
    doc: Text for --help.
    argv: Arguments; None takes the process's.
    **defaults: Default of each flag, which also determines its type. Instead of
      a default, a type makes the flag required, None makes it an optional path,
      and a tuple allows several values.
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
