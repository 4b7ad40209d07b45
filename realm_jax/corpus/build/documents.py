"""Documents from JSON Lines: one `{"title": …, "text": …}` a line.

A line of an update has an id, too; `{"id": …, "remove": true}` takes away the
document that has it.
"""

import codecs
import glob
import hashlib
import html
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from etils import epath

from realm_jax.corpus.errors import InputError

# Messages of skipped lines that a summary shows; all are counted.
_ERRORS_KEPT = 10

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


class Removal(NamedTuple):
  """The id of a document that goes; `place` is the line that says so."""

  id: str
  place: str


_Line = TypeVar("_Line", Document, Document | Removal)


def default_document_id(title: str, text: str) -> str:
  """The id of a document that came without one: a hash of its contents."""
  content = f"{title}\0{text}".encode()
  return hashlib.blake2b(content, digest_size=12).hexdigest()


def input_files(patterns: Sequence[str]) -> list[epath.Path]:
  """The files that match the patterns, sorted, each once.

  Raises:
    InputError: a pattern matches no file.
  """
  files: dict[str, epath.Path] = {}
  for pattern in patterns:
    found = [path for path in _matches(pattern) if path.is_file()]
    if not found:
      raise InputError(
        f"no file matches --input={pattern}; quote patterns so that the shell "
        "leaves them alone, and give JSON Lines files"
      )
    files |= {str(path): path for path in found}
  return [files[name] for name in sorted(files)]


def _matches(pattern: str) -> list[epath.Path]:
  if "://" not in pattern:
    return [epath.Path(name) for name in glob.glob(pattern, recursive=True)]
  path = epath.Path(pattern)
  if glob.has_magic(path.name):
    return list(path.parent.glob(path.name))
  return [path]


def parse_line(line: bytes, *, place: str) -> Document:
  """One line of input as a document.

  Raises:
    InputError: the line is not what is wanted; says what it is.
  """
  return _document(_object(line, place=place, wanted=_WANTED), place=place)


def parse_change(line: bytes, *, place: str) -> Document | Removal:
  """One line of an update.

  Raises:
    InputError: the line is not what is wanted; says what it is.
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


def _given_id(row: dict[str, Any], *, place: str) -> str:
  given = row.get("id")
  if isinstance(given, int) and not isinstance(given, bool):
    row["id"] = str(given)  # Wikipedia's page ids are numbers.
  return _string(row, "id", place=place)


def _document(
  row: dict[str, Any], *, place: str, wanted: str = _WANTED
) -> Document:
  document_id = _given_id(row, place=place)
  for key in ("title", "text"):
    if key not in row:
      keys = ", ".join(map(repr, row)) or "no keys"
      raise InputError(f"{place}: no {key!r} among {keys}; wanted {wanted}")
  fields = [_string(row, key, place=place) for key in ("title", "text", "url")]
  title, text, url = fields
  return Document(
    document_id or default_document_id(title, text), title, text, url, place
  )


def _object(line: bytes, *, place: str, wanted: str) -> dict[str, Any]:
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


def _string(row: dict, key: str, *, place: str) -> str:
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


class DocumentReader:
  """Reads documents in order, one line in memory at a time."""

  def __init__(
    self,
    patterns: Sequence[str],
    *,
    unescape_html: bool = True,
    skip_bad_lines: bool = False,
  ):
    """Finds the files.

    Args:
      patterns: files or glob patterns.
      unescape_html: read `&amp;` as `&` in titles and texts.
      skip_bad_lines: count malformed lines and go on, instead of raising.

    Raises:
      InputError: a pattern matches no file.
    """
    self.files = input_files(patterns)
    self._unescape_html = unescape_html
    self._skip_bad_lines = skip_bad_lines
    self.total_bytes = sum(path.stat().length for path in self.files)
    self.bytes_read = 0
    self.bad_lines: Counter[str] = Counter()
    self.first_errors: list[str] = []
    # File and line of the latest line, packed for `place_of`.
    self.position = 0

  def __iter__(self) -> Iterator[Document]:
    return self._parsed(parse_line)

  def changes(self) -> Iterator[Document | Removal]:
    """The lines as those of an update."""
    return self._parsed(parse_change)

  def _parsed(self, parse: Callable[..., _Line]) -> Iterator[_Line]:
    for file_number, path in enumerate(self.files):
      with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
          self.bytes_read += len(line)
          self.position = (file_number << 40) + number
          if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
          try:
            document = parse(line, place=self.place_of(self.position))
          except InputError as error:
            self.refuse(error, reason="malformed lines")
            continue
          if self._unescape_html and isinstance(document, Document):
            document = document._replace(
              title=html.unescape(document.title),
              text=html.unescape(document.text),
            )
          yield document

  def place_of(self, position: int) -> str:
    """`file:line` of a `position`."""
    return f"{self.files[position >> 40]}:{position & ((1 << 40) - 1)}"

  def refuse(self, error: InputError, *, reason: str) -> None:
    """Raises the error, or counts it where bad lines are to be skipped."""
    if not self._skip_bad_lines:
      raise InputError(f"{error} (--skip_bad_lines goes on without such lines)")
    self.bad_lines[reason] += 1
    if len(self.first_errors) < _ERRORS_KEPT:
      self.first_errors.append(str(error))
