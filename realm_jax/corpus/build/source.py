"""The documents that a build or an update reads: each id once, in order."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from realm_jax.console.progress import Progress
from realm_jax.corpus.build.documents import Document, DocumentReader, Removal
from realm_jax.corpus.build.known_ids import KnownIds
from realm_jax.corpus.build.summary import BuildSummary
from realm_jax.corpus.errors import InputError

# Titles of pages that are lists of pages, which released REALM left out.
DROPPED_TITLES = ("List of", "Index of", "Outline of", "(disambiguation)")

# Documents tokenized in one call. A call costs 20 ms, and what it returns stays
# in memory until its documents are written.
_DOCUMENTS_PER_CHUNK = 512
_CHARACTERS_PER_CHUNK = 4 << 20

_Entry = TypeVar("_Entry", Document, Document | Removal)


def chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
  """Batches for the tokenizer, bounded in documents and in characters."""
  chunk: list[Document] = []
  characters = 0
  for document in documents:
    chunk.append(document)
    characters += len(document.text)
    if (
      len(chunk) >= _DOCUMENTS_PER_CHUNK or characters >= _CHARACTERS_PER_CHUNK
    ):
      yield chunk
      chunk, characters = [], 0
  if chunk:
    yield chunk


class DocumentSource:
  """The documents of some files, to be read once or twice.

  Args:
    inputs: files or glob patterns.
    drop_titles: documents whose title contains one of these are left out.
    unescape_html: read `&amp;` as `&` in titles and texts.
    skip_bad_lines: count lines that cannot be used, and go on.

  Raises:
    InputError: a pattern matches no file.
  """

  def __init__(
    self,
    inputs: Sequence[str],
    *,
    drop_titles: Sequence[str],
    unescape_html: bool,
    skip_bad_lines: bool,
  ):
    self._new_reader = functools.partial(
      DocumentReader,
      inputs,
      unescape_html=unescape_html,
      skip_bad_lines=skip_bad_lines,
    )
    self._reader = self._new_reader()
    # Without titles to drop, a pattern that matches nothing.
    self._dropped = re.compile("|".join(map(re.escape, drop_titles)) or r"(?!)")

  def documents(
    self, summary: BuildSummary, *, label: str
  ) -> Iterator[Document]:
    """Documents with distinct ids and titles that are not dropped.

    Args:
      summary: what is skipped is counted here.
      label: what to call the progress through them.
    """
    for document in self._distinct(DocumentReader.__iter__, summary, label):
      if not self.is_dropped(document, summary):
        yield document

  def changes(self, summary: BuildSummary) -> Iterator[Document | Removal]:
    """The lines of an update with distinct ids, dropped titles among them."""
    return self._distinct(DocumentReader.changes, summary, "changes")

  def is_dropped(self, document: Document, summary: BuildSummary) -> bool:
    """Whether its title says to leave it out, which then is counted."""
    dropped = self._dropped.search(document.title)
    if dropped:
      summary.skipped[f"title with {dropped[0]!r}"] += 1
    return dropped is not None

  def refuse(self, error: InputError, *, reason: str) -> None:
    """Raises the error, or counts it where bad lines are to be skipped."""
    self._reader.refuse(error, reason=reason)

  def _distinct(
    self,
    read: Callable[[DocumentReader], Iterator[_Entry]],
    summary: BuildSummary,
    label: str,
  ) -> Iterator[_Entry]:
    reader = self._reader = self._new_reader()
    known = KnownIds()
    with Progress(
      f"documents ({label})", total_bytes=reader.total_bytes
    ) as progress:
      for entry in read(reader):
        progress.advance(bytes_read=reader.bytes_read)
        earlier = known.add(entry.id, reader.position)
        if earlier is None:
          yield entry
          continue
        title = (
          "" if isinstance(entry, Removal) else f" (title {entry.title!r})"
        )
        reader.refuse(
          InputError(
            f"{entry.place} has the same id {entry.id!r}{title} as "
            f"{reader.place_of(earlier)}; give each document an id of its own, "
            "or drop one (a document without an id gets one from its contents)"
          ),
          reason="repeated ids",
        )
    summary.skipped.update(reader.bad_lines)
    summary.first_errors = reader.first_errors
