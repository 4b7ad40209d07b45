"""Reads files with one document each: plain text, Markdown and HTML.

A document's id is the path of its file relative to the input folder. Its title
is the first heading of Markdown, the `<title>` of HTML, or the file's name.
"""

import html
import html.parser
import re
from collections.abc import Iterator
from pathlib import PurePath

from realm_jax.corpus import InputError
from realm_jax.corpus.documents import Fields, Row
from realm_jax.errors import RealmError
from realm_jax.storage.line_files import contents_of, decompressed

_MARKDOWN, _HTML = (".md", ".markdown"), (".html", ".htm")
ENDINGS = (".txt", *_MARKDOWN, *_HTML)
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)|^(\S.*)\n=+[ \t]*$", re.M)
# Elements whose text is not content, elements within a paragraph, and elements
# that separate two words of a paragraph.
_LEFT_OUT = {*"script style template noscript svg nav footer".split()}
_INLINE = {
  *"a abbr b bdi bdo big cite code data del dfn em font i img ins kbd".split(),
  *"label mark q s samp small span strike strong sub sup time tt u var".split(),
}
_SPACES = {"br", "td", "th"}


def read(name: str, folder: str) -> Iterator[tuple[int, Row]]:
  """Yields the document of a file below a folder."""
  path, title = decompressed(name), ""
  try:
    # Bytes that are not UTF-8 are rejected when the row is read.
    text = contents_of(name).decode("utf-8-sig", "surrogateescape")
    if path.suffix.lower() in _MARKDOWN and (heading := _HEADING.search(text)):
      title = heading[1] or heading[2]
    if path.suffix.lower() in _HTML:
      page = _Page()
      page.feed(text)
      page.close()
      title, text = map(_paragraphs, (page.title, page.body))
  except (RealmError, AssertionError) as error:
    # For an unknown `<![…]>`, the library fails with an assertion.
    yield 1, InputError(str(error))
    return
  document_id = PurePath(name).relative_to(folder).as_posix()
  yield 1, Fields(id=document_id, title=title.strip() or path.stem, text=text)


class _Page(html.parser.HTMLParser):
  """The title and the body of a page, with a newline after each paragraph."""

  def __init__(self) -> None:
    super().__init__()
    self.title, self.body = list[str](), list[str]()
    self._into, self._left_out = self.body, 0

  def handle_starttag(self, tag: str, attrs: object, step: int = 1) -> None:
    self._left_out = max(0, self._left_out + step * (tag in _LEFT_OUT))
    self._into = self.title if tag == "title" and step == 1 else self.body
    if tag not in _INLINE:
      self.body.append(" " if tag in _SPACES else "\n")

  def handle_endtag(self, tag: str) -> None:
    self.handle_starttag(tag, None, -1)

  def handle_data(self, data: str) -> None:
    if not self._left_out:
      self._into.append(re.sub(r"\s+", " ", data))


def _paragraphs(parts: list[str]) -> str:
  """Returns a text of paragraphs, with `&` and `<` escaped as in HTML."""
  lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
  return html.escape("\n\n".join(filter(None, lines)), quote=False)
