"""Documents as lines of JSON: `{"title": …, "text": …}`.

A line of an update also has an id, and `{"id": …, "remove": true}` removes the
document with that id.
"""

import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from realm_jax.corpus import InputError
from realm_jax.storage.json_files import JsonValue

_WANTED = '{"title": …, "text": …} with optional "id" and "url"'
_WANTED_OF_UPDATE = (
  '{"id": …, "title": …, "text": …} with optional "url", or '
  '{"id": …, "remove": true}'
)


# Characters of the longest word that is kept. BERT's tokenizer makes [UNK] of a
# word from 100 bytes on, so that a longer one only makes a block's text long.
_LONGEST_WORD = 1_000
# What that tokenizer takes for one word: no white space, punctuation or CJK.
_LONG_WORD = re.compile(
  r"[^\s!-/:-@\[-`{-~\u2000-\u206f\u2e80-\u9fff\uf900-\ufaff"
  r"\U00020000-\U0003ffff]{1001,}"
)


class Document(NamedTuple):
  """A text with a title; `place` is its file and line, for messages.

  `is_block` marks one that is not split. `sentences` are its byte ranges and
  `spans` its salient spans, where these came with it. `long_words` is the
  number of words that were removed from it.
  """

  id: str
  title: str
  text: str
  url: str
  place: str
  is_block: bool = False
  sentences: Sequence[tuple[int, int]] | None = None
  spans: Sequence[tuple[int, int, str]] | None = None
  long_words: int = 0

  def unescaped(self) -> "Document":
    """Returns the document with `&amp;` read as `&` in title and text."""
    return self._replace(
      title=html.unescape(self.title), text=html.unescape(self.text)
    )

  def without_long_words(self) -> "Document":
    """Returns the document without words of over 1,000 characters.

    Raises:
      InputError: The text has no other words.
    """
    # A longer word fills one of these windows, which few texts have. To look
    # at all words would take most of the time of a pass over ids.
    both, size = f"{self.title} {self.text}", _LONGEST_WORD // 2
    windows = (both[i : i + size] for i in range(0, len(both) - size, size))
    if not any(len(window.split(None, 1)) == 1 for window in windows):
      return self
    title, in_title = _LONG_WORD.subn("", self.title)
    text, in_text = _LONG_WORD.subn("", self.text)
    if in_text and not text.strip():
      longest = max(map(len, self.text.split()))
      raise InputError(
        f"the text has no words but of up to {longest:,} characters, and those "
        f"of over {_LONGEST_WORD:,} are left out; is it text?"
      )
    return self._replace(title=title, text=text, long_words=in_title + in_text)


class Removal(NamedTuple):
  """The id of a document to remove; `place` is the line that says so."""

  id: str
  place: str


def hash63(text: str) -> int:
  """Returns a stable non-negative 63-bit hash."""
  digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
  return int.from_bytes(digest, "little") >> 1


def document_hash(document: Document) -> int:
  """Returns a hash of what an update compares: title, URL and text."""
  return hash63(f"{document.title}\0{document.url}\0{document.text}")


def default_document_id(title: str, text: str) -> str:
  """Returns the id of a document that has none: a hash of its contents."""
  content = f"{title}\0{text}".encode()
  return hashlib.blake2b(content, digest_size=12).hexdigest()


def parse(line: bytes, *, place: str, of_update: bool) -> Document | Removal:
  """Reads one line of a build or of an update.

  Raises:
    InputError: The line is malformed; the message says how, and not where.
  """
  row = _object(line, wanted=_WANTED_OF_UPDATE if of_update else _WANTED)
  return document_of(row, place=place, of_update=of_update)


def document_of(
  row: Mapping[str, object], *, place: str, of_update: bool
) -> Document | Removal:
  """Makes a document of its fields; raises `InputError` as `parse` does."""
  wanted = _WANTED_OF_UPDATE if of_update else _WANTED
  given_id = row.get("id")
  if isinstance(given_id, int) and not isinstance(given_id, bool):
    document_id = str(given_id)  # Wikipedia's page ids are numbers.
  else:
    document_id = _string(row, "id")
  keys = ", ".join(map(repr, row)) or "no keys"
  if of_update and not document_id:
    raise InputError(f"no 'id'; wanted {wanted}")
  if of_update and row.get("remove", False) is not False:
    if row["remove"] is not True or row.keys() - {"id", "remove"}:
      raise InputError(
        f"'remove' is {row['remove']!r} among {keys}; wanted {wanted}"
      )
    return Removal(document_id, place)
  for key in ("title", "text"):
    if key not in row:
      raise InputError(f"no {key!r} among {keys}; wanted {wanted}")
  title, text, url = (_string(row, key) for key in ("title", "text", "url"))
  document_id = document_id or default_document_id(title, text)
  return Document(document_id, title, text, url, place)


def _object(line: bytes, *, wanted: str) -> dict[str, JsonValue]:
  try:
    row = json.loads(line.decode("utf-8"))
  except UnicodeDecodeError as error:
    raise InputError(
      f"byte {error.start + 1} of the line is not UTF-8 "
      f"(0x{line[error.start]:02x}); convert the file to UTF-8"
    ) from None
  except json.JSONDecodeError as error:
    got = "an empty line" if not line.strip() else f"not JSON ({error})"
    raise InputError(f"{got}; wanted {wanted}") from None
  except RecursionError:
    raise InputError(f"nested too deep; wanted {wanted}") from None
  if not isinstance(row, dict):
    raise InputError(f"{type(row).__name__}; wanted {wanted}")
  return row


def _string(row: Mapping[str, object], key: str) -> str:
  value = row.get(key)
  if value is None and key in ("id", "url"):
    return ""
  if not isinstance(value, str):
    raise InputError(f"{key!r} is {type(value).__name__}, wanted a string")
  try:
    value.encode("utf-8")
  except UnicodeEncodeError as error:
    raise InputError(
      f"{key!r} has half of a surrogate pair at character "
      f"{error.start + 1}; write the whole character"
    ) from None
  return value
