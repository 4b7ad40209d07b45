"""Text and JSON files that appear complete, or not at all."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import IO

from etils import epath

from realm_jax.files.json_value import JsonValue
from realm_jax.files.whole.whole_file import whole_file


@contextlib.contextmanager
def whole_text_file(path: epath.PathLike) -> Iterator[IO[str]]:
  """Opens a UTF-8 file that replaces `path` when the block ends well.

  Its directory is created. If the block raises, `path` stays as it was.

  Raises:
    OSError: The disk is full, or the directory cannot be written to.
  """
  with whole_file(path) as partial, partial.open("w", encoding="utf-8") as file:
    yield file


def write_json(path: epath.PathLike, value: JsonValue) -> None:
  """Replaces a file by one that holds `value` as indented JSON."""
  text = json.dumps(value, indent=2, ensure_ascii=False)
  with whole_text_file(path) as file:
    file.write(text + "\n")


@contextlib.contextmanager
def json_lines(
  path: epath.PathLike,
) -> Iterator[Callable[[Mapping[str, JsonValue]], None]]:
  """Yields a function that writes an object as a line of JSON.

  The file replaces `path` when the block ends well.
  """
  with whole_text_file(path) as file:

    def write(line: Mapping[str, JsonValue]) -> None:
      file.write(json.dumps(line, ensure_ascii=False) + "\n")

    yield write
