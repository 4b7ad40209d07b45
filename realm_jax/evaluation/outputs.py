"""What an evaluation leaves: JSON that is whole or not there, and a table."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils import epath

METRICS = "metrics.json"
PREDICTIONS = "predictions.jsonl"

Write = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def _replacing(path: epath.Path) -> Iterator[Any]:
  """A file to write that takes its name once it is complete."""
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f".{path.name}.partial")
  try:
    with partial.open("w") as file:
      yield file
    partial.replace(path)
  except BaseException:
    partial.unlink(missing_ok=True)
    raise


def write_json(path: epath.PathLike, values: Mapping[str, Any]) -> None:
  """Writes one JSON object."""
  with _replacing(epath.Path(path)) as file:
    file.write(json.dumps(values, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def json_lines(path: epath.PathLike | None) -> Iterator[Write]:
  """A function that writes a line; with no path it writes nowhere.

  The file appears when the block ends, and only if it ends well.
  """
  if path is None:
    yield lambda line: None
    return
  with _replacing(epath.Path(path)) as file:
    yield lambda line: file.write(json.dumps(line, ensure_ascii=False) + "\n")


def table(metrics: Mapping[str, Any]) -> str:
  """The figures for people, a line each, in aligned columns."""
  width = max(map(len, metrics))
  return "\n".join(
    f"{name:<{width}}  {_shown(value)}" for name, value in metrics.items()
  )


def _shown(value: Any) -> str:
  return f"{value:.4f}" if isinstance(value, float) else str(value)
