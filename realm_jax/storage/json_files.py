"""JSON values, and files of them that appear complete, or not at all."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from etils import epath

from realm_jax.errors import RealmError
from realm_jax.storage.atomic import atomic_text_file
from realm_jax.storage.line_files import LONGEST_LINE
from realm_jax.storage.paths import read_bytes

T = TypeVar("T")
_ARRAY = (
  "it begins a JSON array; write JSON Lines, an object on each line, as "
  "`jq -c '.[]' FILE` does"
)

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
  """Replaces a file by `value` as indented JSON."""
  text = json.dumps(value, indent=2, ensure_ascii=False)
  with atomic_text_file(path) as file:
    file.write(text + "\n")


def read_object(line: bytes) -> dict[str, Any]:
  """Reads an object of JSON in UTF-8.

  Raises:
    RealmError: The line is not an object; the message says what it is.
  """
  if len(line) > LONGEST_LINE:
    raise RealmError(
      f"the line has over {LONGEST_LINE >> 20} MiB; cut what it holds into "
      "several lines"
    )
  try:
    # A byte order mark may begin a file, or one that was joined to another.
    value = json.loads(line.decode("utf-8-sig"))
  except UnicodeDecodeError as error:
    raise RealmError(
      f"byte {error.start + 1} of the line is not UTF-8 "
      f"(0x{line[error.start]:02x}); convert the file to UTF-8"
    ) from None
  except RecursionError:
    raise RealmError("it has too many lists or objects in each other") from None
  except json.JSONDecodeError as error:
    if line.lstrip().startswith(b"["):
      raise RealmError(_ARRAY) from None
    got = f"not JSON ({error})" if line.strip() else "an empty line"
    raise RealmError(got) from None
  except ValueError:
    raise RealmError("it has a number of over 4,300 digits") from None
  if isinstance(value, list):
    raise RealmError(_ARRAY)
  if not isinstance(value, dict):
    raise RealmError(f"it is a {type(value).__name__}, not an object")
  return value


def require_unicode(text: str, name: str) -> None:
  """Raises a `RealmError` about `name` if a text cannot be written in UTF-8."""
  try:
    text.encode("utf-8")
  except UnicodeEncodeError as error:
    raise RealmError(
      f"{name} has half of a surrogate pair at character {error.start + 1}, or "
      "a byte there that is not UTF-8; write the whole character in UTF-8"
    ) from None


@contextlib.contextmanager
def json_lines(
  path: epath.PathLike,
) -> Iterator[Callable[[Mapping[str, JsonValue]], None]]:
  """Yields a function that writes an object as a line of JSON.

  The file replaces `path` when the block ends without an error.
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
  """Applies a function to each line of a file, and returns the results.

  Raises:
    error: The file is missing or empty, or a line is not `wanted`.
  """
  results = []
  try:
    lines = read_bytes(path).rstrip().splitlines()
  except (FileNotFoundError, IsADirectoryError):
    raise error(f"there is no file {path}; want {wanted}") from None
  for number, line in enumerate(lines, 1):
    try:
      results.append(read(line))
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
      why = problem if isinstance(problem, RealmError) else repr(problem)
      raise error(f"{path}, line {number}: {why}; want {wanted}") from problem
  if not results:
    raise error(f"{path} is empty; want {wanted}")
  return results
