"""JSON files that appear complete, or not at all."""

import json

from etils import epath

from realm_jax.files import whole_file
from realm_jax.files.json_value import JsonValue


def json_text(value: JsonValue) -> str:
  """Returns indented JSON that ends in a newline, as files store it."""
  return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: epath.PathLike, value: JsonValue) -> None:
  """Replaces a file by one that holds `value` as indented JSON."""
  whole_file.write_text(path, json_text(value))
