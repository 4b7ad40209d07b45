"""Text and JSON files that appear complete, or not at all.

A file is written under a hidden name beside its target and then renamed. A
writer that is killed leaves the hidden file, which the next one overwrites.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from etils import epath

from realm_jax.files.durable import sync
from realm_jax.files.json_value import JsonValue
from realm_jax.files.remote import is_remote


@contextlib.contextmanager
def whole_text_file(path: epath.PathLike) -> Iterator[IO[str]]:
  """Opens a UTF-8 file that replaces `path` when the block ends well.

  Its directory is created. If the block raises, `path` stays as it was.

  Raises:
    OSError: The disk is full, or the directory cannot be written to.
  """
  target = epath.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  partial = target.with_name(f".{target.name}.partial")
  try:
    # epath would write a local file in the encoding of the user's locale.
    opener = partial if is_remote(target) else Path(partial)
    with opener.open("w", encoding="utf-8") as file:
      yield file
      if not is_remote(target):
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
  except BaseException:
    partial.unlink(missing_ok=True)
    raise
  if not is_remote(target):
    sync(Path(target.parent))


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
