"""JSON values, and files of them that appear complete, or not at all."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from etils import epath

from realm_jax.storage.atomic import atomic_text_file

# A value that `json.dumps` writes and `json.loads` returns.
if TYPE_CHECKING:
  JsonValue: TypeAlias = (
    Mapping[str, "JsonValue"]
    | Sequence["JsonValue"]
    | str
    | float
    | bool
    | None
  )
else:
  # The check of annotations at run time does not know recursive types.
  JsonValue = Mapping | Sequence | str | int | float | bool | None


def write_json(path: epath.PathLike, value: JsonValue) -> None:
  """Replaces a file by one that holds `value` as indented JSON."""
  text = json.dumps(value, indent=2, ensure_ascii=False)
  with atomic_text_file(path) as file:
    file.write(text + "\n")


@contextlib.contextmanager
def json_lines(
  path: epath.PathLike,
) -> Iterator[Callable[[Mapping[str, JsonValue]], None]]:
  """Yields a function that writes an object as a line of JSON.

  The file replaces `path` when the block ends well.
  """
  with atomic_text_file(path) as file:

    def write(line: Mapping[str, JsonValue]) -> None:
      file.write(json.dumps(line, ensure_ascii=False) + "\n")

    yield write
