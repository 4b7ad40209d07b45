"""Documents, and the input rows from which they are read.

A row is a line of JSON, `{"title": …, "text": …}`, or a record with the same
fields; the title may be missing. `contents`, as pyserini and FlashRAG write it,
is a text whose first line may be the title. In an update a row also has an id,
and `{"id": …, "remove": true}` removes the document with that id.

A row may have `links`: titles of other documents, or objects with a `title`,
optionally a `relation`, and optionally the characters `start` and `limit` in
the row's text. In HotpotQA's Wikipedia, links are HTML anchors.
"""

import dataclasses
import functools
import hashlib
import html
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from realm_jax.corpus import InputError
from realm_jax.errors import RealmError
from realm_jax.settings import accepts
from realm_jax.storage.json_files import read_object, require_unicode
from realm_jax.text.languages import require_language, words_longer_than


class Fields(dict[str, Any]):
  """The fields of a row, as its line of JSON would give them."""


# A line of JSON, its fields, a record of TFDS with texts in UTF-8, or the error
# of a bad row.
Row: TypeAlias = bytes | Fields | Mapping[str, Any] | InputError

# Fields that are always read, even if the corpus does not keep them.
FIELDS = {*"id _id title text contents url language links remove".split()}
_WANTED = '{"title": …, "text": …} with optional "id", "url" and "language"'
_WANTED_OF_UPDATE = (
  '{"id": …, "title": …, "text": …} with optional "url" and "language", or '
  '{"id": …, "remove": true}'
)
_WANTED_LINK = (
  'want a title, or {"title": …} with optional "relation" and, together, '
  '"start" and "limit", characters of the text (--links=none reads no links)'
)
_ANCHOR = re.compile(r'<a href="([^"]+)">(.*?)</a>', re.DOTALL)
# Titles of pages that only list other pages, which released REALM left out.
# `drop_titles` calls them "wikipedia".
_WIKIPEDIA_TITLES = ("List of", "Index of", "Outline of", "(disambiguation)")
# Maximum length of a word, in characters. BERT's tokenizer turns words of over
# 100 into [UNK], so longer ones only inflate a block's text.
_LONGEST_WORD = 1_000
_LONG_WORD = words_longer_than(_LONGEST_WORD)


class Link(NamedTuple):
  """A link to a title, at characters `[start, limit)`; −1 is no position."""

  title: str
  relation: str = ""
  start: int = -1
  limit: int = -1

  def unescaped(self, text: str) -> "Link":
    """Returns the link after `&amp;` and the like are unescaped in `text`."""
    title, (start, limit) = html.unescape(self.title), self[2:]
    if start >= 0 and "&" in text:
      start, limit = (len(html.unescape(text[:n])) for n in (start, limit))
    return Link(title, self.relation, start, limit)


class Document(NamedTuple):
  """A text with a title.

  Attributes:
    id: Id of the document, the same in all versions of the corpus.
    title, text, url: Contents of the document; the URL may be empty.
    is_block: Whether the text is a single block, and is not split.
    sentences: Byte ranges of the sentences, if the input has them.
    spans: Byte ranges and kinds of the salient spans, if the input has them.
    long_words: Number of words that were removed because of their length.
    language: Language code; empty for the corpus's language.
    fields: Other fields that the corpus keeps, as JSON; empty for none.
    is_removal: Whether an update removes the document with this id.
    place: Position in the input, as `file:line`.
    links: Links in the input.
    table_links: Links of the document's title in a link table.
  """

  id: str
  title: str = ""
  text: str = ""
  url: str = ""
  is_block: bool = False
  sentences: Sequence[tuple[int, int]] | None = None
  spans: Sequence[tuple[int, int, str]] | None = None
  long_words: int = 0
  language: str = ""
  fields: str = ""
  is_removal: bool = False
  place: str = ""
  links: Sequence[Link] = ()
  table_links: Sequence[Link] = ()

  @property
  def hash(self) -> int:
    """Hash of everything in the input, which shows changes to an update."""
    language = f"\0{self.language}" if self.language else ""
    fields = f"\0{self.fields}" if self.fields else ""
    links = f"\0{json.dumps(self.links)}" if self.links else ""
    both = f"{self.title}\0{self.url}\0{self.text}"
    return hash63(f"{both}{language}{fields}{links}")


def hash63(text: str) -> int:
  """Returns a stable non-negative 63-bit hash."""
  digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
  return int.from_bytes(digest, "little") >> 1


def block_id(corpus_name: str, document_id: str, ordinal: int) -> int:
  """Returns the stable id of a document's block: 63 bits, never negative.

  The name of the corpus is part of it, so that documents of two corpora may
  have the same ids.
  """
  return hash63(f"{corpus_name}\0{document_id}\0{ordinal}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowReader:
  """Turns rows into documents, with arguments of `build_corpus`.

  With `of_update`, rows are changes: they have ids, and may remove documents.
  """

  fields: Sequence[str] = ()
  drop_titles: Sequence[str] = ()
  unescape_html: bool = True
  reads_links: bool = True
  of_update: bool = False

  @functools.cached_property
  def dropped_titles(self) -> tuple[str, ...]:
    """The texts of `drop_titles`, with "wikipedia" expanded."""
    expanded: list[str] = []
    for text in self.drop_titles:
      expanded += _WIKIPEDIA_TITLES if text == "wikipedia" else [text]
    return tuple(text for text in expanded if text)

  def dropped(self, document: Document) -> str:
    """Returns the text for which a document's title is dropped, or ""."""
    texts = (text for text in self.dropped_titles if text in document.title)
    return next(texts, "")

  def read(self, row: Row) -> Document:
    """Reads a row; raises an `InputError`, without position, for a bad one."""
    if isinstance(row, InputError):
      raise row
    try:
      return self._read(row)
    except RealmError as error:
      wanted = _WANTED_OF_UPDATE if self.of_update else _WANTED
      raise InputError(f"{error}; wanted {wanted}") from None

  def _read(self, row: bytes | Mapping[str, Any]) -> Document:
    if isinstance(row, bytes):
      row = Fields(read_object(row))
    is_record = not isinstance(row, Fields)
    fields = _decoded(row, self.fields) if is_record else row
    keys = ", ".join(map(repr, fields)) or "no keys"
    # BEIR writes "_id", and Wikipedia's page ids are numbers.
    id_key = "id" if "id" in fields else "_id"
    if type(fields.get(id_key)) is int:
      fields = {**fields, id_key: str(fields[id_key])}
    document_id, url, language = (
      _string(fields, key) if fields.get(key) is not None else ""
      for key in (id_key, "url", "language")
    )
    if self.of_update and not document_id:
      raise InputError("no 'id'")
    if self.of_update and fields.get("remove", False) is not False:
      if fields["remove"] is not True or fields.keys() - {"id", "remove"}:
        raise InputError(f"'remove' is {fields['remove']!r} among {keys}")
      return Document(document_id, is_removal=True)
    if "text" not in fields and "contents" in fields:
      fields = _with_text(fields)
    if "text_with_links" in fields:
      fields = _with_anchors(fields)
    if "text" not in fields:
      raise InputError(f"no 'text' among {keys}")
    text = _string(fields, "text")
    title = "" if fields.get("title") is None else _string(fields, "title")
    if "_id" in fields and not text.strip():
      # In BEIR's format a document may be its title alone.
      text = title
    if not document_id:
      content = f"{title}\0{text}".encode()
      document_id = hashlib.blake2b(content, digest_size=12).hexdigest()
    if is_record and {"sentences", "spans"} <= row.keys():
      # Offsets in the input refer to the original text.
      kinds = np.asarray(row["spans"]["type"]).tolist()
      spans = zip(_ranges(row["spans"]), kinds, strict=True)
      return Document(
        document_id,
        title,
        text,
        url,
        is_block=True,
        sentences=_ranges(row["sentences"]),
        spans=[(*span, kind.decode()) for span, kind in spans],
      )
    entries = fields.get("links") if self.reads_links else None
    if entries is not None and not isinstance(entries, list):
      raise InputError(f"'links' is {entries!r} and no list; {_WANTED_LINK}")
    links = [_link(entry, len(text)) for entry in entries or ()]
    if self.unescape_html:
      try:
        links = [link.unescaped(text) for link in links]
        title, text = html.unescape(title), html.unescape(text)
      except ValueError:
        # Python's limit for parsing integers.
        raise InputError("it has a '&#…;' of over 4,300 digits") from None
    if language:
      require_language(language)
    document = Document(
      document_id,
      title,
      text,
      url,
      language=language,
      fields=self._kept(fields),
      links=links,
    )
    return _without_long_words(document)

  def _kept(self, fields: Mapping[str, Any]) -> str:
    """Returns the fields that the corpus keeps, as JSON."""
    kept = {n: fields[n] for n in self.fields if fields.get(n) is not None}
    for name, value in kept.items():
      values = value if isinstance(value, list) else [value]
      if not all(isinstance(one, str | int | float) for one in values):
        raise InputError(
          f"{name!r} is {value!r}; a field that is kept has a text, a number, "
          "true or false, or a list of these"
        )
      require_unicode(repr(value), repr(name))
    return json.dumps(kept, ensure_ascii=False, sort_keys=True) if kept else ""


def _with_text(fields: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns fields with title and text from the field `contents`."""
  contents = _string(fields, "contents")
  title, _, text = contents.partition("\n")
  # A long first line is no title.
  if "title" in fields or not text.strip() or len(title) > 200:
    return {**fields, "text": contents}
  return {
    **fields,
    "title": re.sub(r'^"(.*)"$', r"\1", title.strip()),
    "text": text,
  }


def _with_anchors(fields: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns fields with the text and the links of sentences with anchors."""
  sentences, text, links, before = fields["text_with_links"], "", [], 0
  if not accepts(list[str], sentences):
    raise InputError("'text_with_links' has others than sentences")
  marked = "".join(sentences)
  for anchor in _ANCHOR.finditer(marked):
    text += marked[before : anchor.start()]
    place = {"start": len(text), "limit": len(text) + len(anchor[2])}
    title = urllib.parse.unquote(anchor[1])
    links.append({"title": title, **(place if anchor[2] else {})})
    text, before = text + anchor[2], anchor.end()
  return {**fields, "text": text + marked[before:], "links": links}


def _link(entry: Any, length: int) -> Link:
  """Reads a link in a text of `length` characters."""
  fields = {"title": entry} if isinstance(entry, str) else entry
  if isinstance(fields, dict):
    known = (name for name in Link._fields if fields.get(name) is not None)
    values: Any = {"title": "", **{name: fields[name] for name in known}}
    title, relation, start, limit = link = Link(**values)
    if (
      isinstance(title, str)
      and isinstance(relation, str)
      and title.strip()
      and type(start) is type(limit) is int
      and (start == limit == -1 or 0 <= start < limit <= length)
    ):
      require_unicode(title + relation, "one of the 'links'")
      return link
  raise InputError(f"one of the 'links' is {entry!r}; {_WANTED_LINK}")


def _decoded(
  row: Mapping[str, Any], others: Sequence[str]
) -> Mapping[str, Any]:
  """Returns the fields of a record as JSON would give them."""
  fields: dict[str, Any] = {}
  # A data set's own "language" may be anything.
  for key in row.keys() & {"id", "title", "text", "url", *others}:
    value = row[key].item() if isinstance(row[key], np.generic) else row[key]
    try:
      fields[key] = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
      raise InputError(
        f"{key!r} is not UTF-8 (byte {error.start + 1})"
      ) from None
  return fields


def _ranges(items: Mapping[str, Any]) -> list[tuple[int, int]]:
  """Returns the `start` and `limit` of a sequence's items."""
  pairs = np.stack([items["start"], items["limit"]], axis=-1)
  return [(start, limit) for start, limit in pairs.tolist()]


def _string(fields: Mapping[str, Any], key: str) -> str:
  value = fields[key]
  if not isinstance(value, str):
    raise InputError(f"{key!r} is {type(value).__name__} and not a string")
  require_unicode(value, repr(key))
  return value


def _without_long_words(document: Document) -> Document:
  """Returns the document without words of over 1,000 characters.

  Raises:
    InputError: The text has no other words.
  """
  # A longer word fills one of these windows, which is rare. Checking all words
  # would take most of the time of a pass over ids.
  both, size = f"{document.title} {document.text}", _LONGEST_WORD // 2
  windows = (both[i : i + size] for i in range(0, len(both) - size, size))
  if not any(len(window.split(None, 1)) == 1 for window in windows):
    return document
  title, in_title = _LONG_WORD.subn("", document.title)
  text, in_text = _LONG_WORD.subn("", document.text)
  if in_text and not text.strip():
    longest = max(map(len, document.text.split()))
    raise InputError(
      f"the text has no words but of up to {longest:,} characters, and those "
      f"of over {_LONGEST_WORD:,} are left out"
    )
  return document._replace(
    title=title,
    text=text,
    long_words=in_title + in_text,
    # Their positions are found again later.
    links=[link._replace(start=-1, limit=-1) for link in document.links],
  )
