"""JSON values, and files of them that appear complete, or not at all."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from etils import epath

from realm_jax.errors import RealmError
from realm_jax.storage.atomic import atomic_text_file
from realm_jax.storage.paths import read_bytes

T = TypeVar("T")

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


def read_lines(
  path: epath.PathLike,
  read: Callable[[bytes], T],
  *,
  wanted: str,
  error: type[RealmError],
) -> list[T]:
  """Returns what a function reads of each line of a file.

  Raises:
    error: There is no file, it is empty, or a line is not what is `wanted`.
  """
  found = []
  try:
    lines = read_bytes(path).rstrip().splitlines()
  except (FileNotFoundError, IsADirectoryError):
    raise error(f"there is no file {path}; want {wanted}") from None
  for number, line in enumerate(lines, 1):
    try:
      found.append(read(line))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
      raise error(
        f"{path}, line {number}: {problem!r}; want {wanted}"
      ) from problem
  if not found:
    raise error(f"{path} is empty; want {wanted}")
  return found
