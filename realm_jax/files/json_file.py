"""JSON files that appear complete, or not at all."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping

from etils import epath

from realm_jax.files import whole_file
from realm_jax.files.json_value import JsonValue


def write_json(path: epath.PathLike, value: JsonValue) -> None:
  """Replaces a file by one that holds `value` as indented JSON."""
  text = json.dumps(value, indent=2, ensure_ascii=False)
  whole_file.write_text(path, text + "\n")


@contextlib.contextmanager
def json_lines(
  path: epath.PathLike,
) -> Iterator[Callable[[Mapping[str, JsonValue]], None]]:
  """Yields a function that writes an object as a line of JSON.

  The file replaces `path` when the block ends well.
  """
  with whole_file.whole_text_file(path) as file:

    def write(line: Mapping[str, JsonValue]) -> None:
      file.write(json.dumps(line, ensure_ascii=False) + "\n")

    yield write
