"""Documents read from the rows of files, each id once, in order."""

import itertools
import re
from collections.abc import Iterator, Sequence

from realm_jax.console.progress import Progress
from realm_jax.corpus.building.sources.documents import Document, Removal
from realm_jax.corpus.building.sources.input_file import InputFile, Row
from realm_jax.corpus.building.sources.json_lines import json_lines_files
from realm_jax.corpus.building.sources.seen_ids import SeenIds
from realm_jax.corpus.building.summary import BuildSummary
from realm_jax.corpus.errors import InputError

# Titles of pages that only list other pages, which released REALM left out.
# `drop_titles` calls them "wikipedia".
WIKIPEDIA_TITLES = ("List of", "Index of", "Outline of", "(disambiguation)")

MALFORMED = "malformed lines"
# The position of a row: the file's number in the bits above its own.
_LINE_BITS = 40


class DocumentSource:
  """The documents of files, of which one row is in memory.

  The arguments are those of `build_corpus`. `files` are in order, and in
  `drop_titles` "wikipedia" is expanded to `WIKIPEDIA_TITLES`.

  Raises:
    InputError: A pattern matches no file.
  """

  def __init__(
    self,
    inputs: Sequence[str],
    *,
    drop_titles: Sequence[str] = (),
    unescape_html: bool = True,
    skip_bad_lines: bool = False,
  ):
    self.inputs = tuple(inputs)
    self.files = _input_files(inputs)
    expanded: list[str] = []
    for text in drop_titles:
      expanded += WIKIPEDIA_TITLES if text == "wikipedia" else (text,)
    self.drop_titles = tuple(text for text in expanded if text)
    # If no titles are dropped, a pattern that matches nothing.
    self._dropped = re.compile(
      "|".join(map(re.escape, self.drop_titles)) or r"(?!)"
    )
    self._unescape_html = unescape_html
    self.skip_bad_lines = skip_bad_lines

  def documents(
    self, summary: BuildSummary, *, label: str = "documents"
  ) -> Iterator[Document]:
    """Yields the documents, without those whose titles are dropped.

    What is skipped is counted in `summary`; progress lines begin with `label`.

    Raises:
      InputError: A line is malformed or repeats an id.
    """
    for document in self._read(summary, label, of_update=False):
      # Removals are lines of updates alone.
      if isinstance(document, Document) and not self.is_dropped(
        document, summary
      ):
        yield document

  def changes(self, summary: BuildSummary) -> Iterator[Document | Removal]:
    """Yields the lines of an update, those with dropped titles included."""
    return self._read(summary, "documents (changes)", of_update=True)

  def is_dropped(self, document: Document, summary: BuildSummary) -> bool:
    """Returns whether a document's title is dropped, and counts it."""
    reason = self.reason_to_drop(document)
    if reason is not None:
      summary.skipped[reason] += 1
    return reason is not None

  def reason_to_drop(self, document: Document) -> str | None:
    """Returns why a document's title is dropped, if it is."""
    dropped = self._dropped.search(document.title)
    return f"title with {dropped[0]!r}" if dropped else None

  def refuse(self, message: str, *, reason: str, summary: BuildSummary) -> None:
    """Raises `InputError`, or counts the line if bad lines are skipped."""
    if not self.skip_bad_lines:
      raise InputError(
        f"{message} (--skip_bad_lines continues without such lines)"
      )
    summary.skip_bad_line(reason, message)

  def parse(
    self, position: int, row: Row, *, of_update: bool
  ) -> Document | Removal:
    """Reads a row; raises `InputError`, which says how it is malformed."""
    file, place = self.file_of(position), self.place(position)
    entry = file.parse(row, place=place, of_update=of_update)
    # Offsets that came with a text are of the text as it is.
    if isinstance(entry, Removal) or entry.is_block:
      return entry
    if self._unescape_html:
      entry = entry.unescaped()
    return entry.without_long_words()

  def refuse_malformed(
    self, position: int, error: str, summary: BuildSummary
  ) -> None:
    """Raises `InputError`, or counts the row if bad rows are skipped."""
    message = f"{self.place(position)}: {error}"
    self.refuse(message, reason=MALFORMED, summary=summary)

  def refuse_repeated(
    self,
    position: int,
    earlier: int,
    *,
    document_id: str,
    title: str | None,
    summary: BuildSummary,
  ) -> None:
    """Raises `InputError`, or counts the row if bad rows are skipped."""
    titled = "" if title is None else f" (title {title!r})"
    self.refuse(
      f"{self.place(position)} has the same id {document_id!r}{titled} as "
      f"{self.place(earlier)}; give each document an id of its own, or "
      "drop one (a document without an id gets one from its contents)",
      reason="repeated ids",
      summary=summary,
    )

  def _read(
    self, summary: BuildSummary, label: str, *, of_update: bool
  ) -> Iterator[Document | Removal]:
    """Yields the parsed rows that have distinct ids."""
    seen = SeenIds()
    for position, row in self._rows(label):
      try:
        entry = self.parse(position, row, of_update=of_update)
      except InputError as error:
        self.refuse_malformed(position, str(error), summary)
        continue
      earlier = seen.add(entry.id, position)
      is_numbered = self.file_of(position).numbers_repeats and not of_update
      if earlier is None or is_numbered:
        yield entry
        continue
      title = None if isinstance(entry, Removal) else entry.title
      self.refuse_repeated(
        position, earlier, document_id=entry.id, title=title, summary=summary
      )

  def _rows(self, label: str) -> Iterator[tuple[int, Row]]:
    """Yields rows with their positions, and reports progress."""
    sizes = [file.size for file in self.files]
    with Progress(label, total_bytes=sum(sizes) or None) as progress:
      for file_number, file in enumerate(self.files):
        before = sum(sizes[:file_number])
        for number, (row, bytes_read) in enumerate(file.rows(), start=1):
          progress.advance(bytes_read=before + bytes_read)
          yield position_of(file_number, number), row

  def file_of(self, position: int) -> InputFile:
    """Returns the file of a row."""
    return self.files[position >> _LINE_BITS]

  def place(self, position: int) -> str:
    """Names a row for messages, as `file:line`."""
    number = position & ((1 << _LINE_BITS) - 1)
    return self.file_of(position).place(number)


def position_of(file: int, number: int) -> int:
  """Returns the position of a row: in order over all files."""
  return (file << _LINE_BITS) + number


def _input_files(inputs: Sequence[str]) -> list[InputFile]:
  """Returns the files of JSON Lines, then those of other sources."""
  others = [name for name in inputs if name.startswith(("tfds:", "seqio:"))]
  patterns = [name for name in inputs if name not in others]
  files: list[InputFile] = [*json_lines_files(patterns)]
  if others:
    # Imported late: TensorFlow Datasets takes seconds.
    from realm_jax.corpus.building.sources.seqio_rows import seqio_shards

    files += itertools.chain.from_iterable(map(seqio_shards, others))
  return files
