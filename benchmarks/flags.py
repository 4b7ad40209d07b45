"""Flags of benchmarks, derived from their defaults, and their output."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_jax.console import columns
from realm_jax.storage.json_files import JsonValue, write_json


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


def table(rows: Sequence[Mapping[str, object]]) -> str:
  """Returns rows with the same names as aligned columns, below the names."""
  return columns([[*rows[0]], *([*row.values()] for row in rows)])


def write(options: argparse.Namespace, value: JsonValue) -> None:
  """Writes a value to the file of --json, if the flag was given."""
  if options.json:
    write_json(options.json, value)
