"""JSON files that appear complete, or not at all."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from etils import epath

from realm_jax.files import whole_file

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


def json_text(value: JsonValue) -> str:
  """Returns indented JSON that ends in a newline, as files store it."""
  return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: epath.PathLike, value: JsonValue) -> None:
  """Replaces a file by one that holds `value` as indented JSON."""
  whole_file.write_text(path, json_text(value))
