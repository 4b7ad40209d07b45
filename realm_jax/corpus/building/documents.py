"""Documents as lines of JSON: `{"title": …, "text": …}`.

A line of an update also has an id, and `{"id": …, "remove": true}` removes the
document with that id.
"""

import hashlib
import html
import json
from typing import NamedTuple

from realm_jax.corpus.errors import InputError
from realm_jax.files.json_file import JsonValue

_WANTED = '{"title": …, "text": …} with optional "id" and "url"'
_WANTED_OF_UPDATE = (
  '{"id": …, "title": …, "text": …} with optional "url", or '
  '{"id": …, "remove": true}'
)


class Document(NamedTuple):
  """A text with a title; `place` is its file and line, for messages."""

  id: str
  title: str
  text: str
  url: str
  place: str

  def unescaped(self) -> "Document":
    """Returns the document with `&amp;` read as `&` in title and text."""
    return self._replace(
      title=html.unescape(self.title), text=html.unescape(self.text)
    )


class Removal(NamedTuple):
  """The id of a document to remove; `place` is the line that says so."""

  id: str
  place: str


def default_document_id(title: str, text: str) -> str:
  """Returns the id of a document that has none: a hash of its contents."""
  content = f"{title}\0{text}".encode()
  return hashlib.blake2b(content, digest_size=12).hexdigest()


def parse_line(line: bytes, *, place: str) -> Document:
  """Reads one line of input.

  Raises:
    InputError: The line is malformed; the message says how.
  """
  return _document(_object(line, place=place, wanted=_WANTED), place=place)


def parse_change(line: bytes, *, place: str) -> Document | Removal:
  """Reads one line of an update.

  Raises:
    InputError: The line is malformed; the message says how.
  """
  wanted = _WANTED_OF_UPDATE
  row = _object(line, place=place, wanted=wanted)
  if not (document_id := _given_id(row, place=place)):
    raise InputError(f"{place}: no 'id'; wanted {wanted}")
  if row.get("remove", False) is False:
    return _document(row, place=place, wanted=wanted)
  if row["remove"] is not True or row.keys() - {"id", "remove"}:
    keys = ", ".join(map(repr, row))
    raise InputError(
      f"{place}: 'remove' is {row['remove']!r} among {keys}; wanted {wanted}"
    )
  return Removal(document_id, place)


def _given_id(row: dict[str, JsonValue], *, place: str) -> str:
  given = row.get("id")
  if isinstance(given, int) and not isinstance(given, bool):
    return str(given)  # Wikipedia's page ids are numbers.
  return _string(row, "id", place=place)


def _document(
  row: dict[str, JsonValue], *, place: str, wanted: str = _WANTED
) -> Document:
  document_id = _given_id(row, place=place)
  for key in ("title", "text"):
    if key not in row:
      keys = ", ".join(map(repr, row)) or "no keys"
      raise InputError(f"{place}: no {key!r} among {keys}; wanted {wanted}")
  title, text, url = (
    _string(row, key, place=place) for key in ("title", "text", "url")
  )
  return Document(
    document_id or default_document_id(title, text), title, text, url, place
  )


def _object(line: bytes, *, place: str, wanted: str) -> dict[str, JsonValue]:
  try:
    row = json.loads(line.decode("utf-8"))
  except UnicodeDecodeError as error:
    raise InputError(
      f"{place}: byte {error.start + 1} of the line is not UTF-8 "
      f"(0x{line[error.start]:02x}); convert the file to UTF-8"
    ) from None
  except json.JSONDecodeError as error:
    got = "an empty line" if not line.strip() else f"not JSON ({error})"
    raise InputError(f"{place}: {got}; wanted {wanted}") from None
  except RecursionError:
    raise InputError(f"{place}: nested too deep; wanted {wanted}") from None
  if not isinstance(row, dict):
    raise InputError(f"{place}: {type(row).__name__}; wanted {wanted}")
  return row


def _string(row: dict[str, JsonValue], key: str, *, place: str) -> str:
  value = row.get(key)
  if value is None and key in ("id", "url"):
    return ""
  if not isinstance(value, str):
    raise InputError(
      f"{place}: {key!r} is {type(value).__name__}, wanted a string"
    )
  try:
    value.encode("utf-8")
  except UnicodeEncodeError as error:
    raise InputError(
      f"{place}: {key!r} has half of a surrogate pair at character "
      f"{error.start + 1}; write the whole character"
    ) from None
  return value
