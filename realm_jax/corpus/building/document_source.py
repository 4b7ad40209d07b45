"""Documents read from files, each id once, in order."""

import codecs
import glob
import re
from collections.abc import Iterable, Iterator, Sequence

from etils import epath

from realm_jax.console.progress import Progress
from realm_jax.corpus.building.documents import Document, Removal, parse
from realm_jax.corpus.building.seen_ids import SeenIds
from realm_jax.corpus.building.summary import BuildSummary
from realm_jax.corpus.errors import InputError
from realm_jax.files.remote import is_remote

# Titles of pages that only list other pages, which released REALM left out.
# `drop_titles` calls them "wikipedia".
WIKIPEDIA_TITLES = ("List of", "Index of", "Outline of", "(disambiguation)")

# The position of a line: the file's number in the bits above its own.
_LINE_BITS = 40


class DocumentSource:
  """The documents of JSON Lines files, of which one line is in memory.

  The arguments are those of `build_corpus`. `drop_titles` becomes an attribute
  with "wikipedia" expanded to `WIKIPEDIA_TITLES`.

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
    self._files = _input_files(inputs)
    expanded: list[str] = []
    for text in drop_titles:
      expanded += WIKIPEDIA_TITLES if text == "wikipedia" else (text,)
    self.drop_titles = tuple(text for text in expanded if text)
    # If no titles are dropped, a pattern that matches nothing.
    self._dropped = re.compile(
      "|".join(map(re.escape, self.drop_titles)) or r"(?!)"
    )
    self._unescape_html = unescape_html
    self._skip_bad_lines = skip_bad_lines

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
    dropped = self._dropped.search(document.title)
    if dropped:
      summary.skipped[f"title with {dropped[0]!r}"] += 1
    return dropped is not None

  def refuse(self, message: str, *, reason: str, summary: BuildSummary) -> None:
    """Raises `InputError`, or counts the line if bad lines are skipped."""
    if not self._skip_bad_lines:
      raise InputError(
        f"{message} (--skip_bad_lines continues without such lines)"
      )
    summary.skip_bad_line(reason, message)

  def _read(
    self, summary: BuildSummary, label: str, *, of_update: bool
  ) -> Iterator[Document | Removal]:
    """Yields the parsed lines that have distinct ids."""
    seen = SeenIds()
    for position, line in self._lines(label):
      place = self._place(position)
      try:
        entry = parse(line, place=place, of_update=of_update)
      except InputError as error:
        message = f"{place}: {error}"
        self.refuse(message, reason="malformed lines", summary=summary)
        continue
      earlier = seen.add(entry.id, position)
      if earlier is not None:
        title = (
          "" if isinstance(entry, Removal) else f" (title {entry.title!r})"
        )
        self.refuse(
          f"{place} has the same id {entry.id!r}{title} as "
          f"{self._place(earlier)}; give each document an id of its own, or "
          "drop one (a document without an id gets one from its contents)",
          reason="repeated ids",
          summary=summary,
        )
      elif self._unescape_html and isinstance(entry, Document):
        yield entry.unescaped()
      else:
        yield entry

  def _lines(self, label: str) -> Iterator[tuple[int, bytes]]:
    """Yields lines with their positions, and reports progress."""
    total_bytes = sum(path.stat().length for path in self._files)
    bytes_read = 0
    with Progress(label, total_bytes=total_bytes) as progress:
      for file_number, path in enumerate(self._files):
        with path.open("rb") as lines:
          for number, line in enumerate(lines, start=1):
            bytes_read += len(line)
            progress.advance(bytes_read=bytes_read)
            if number == 1:
              line = line.removeprefix(codecs.BOM_UTF8)
            yield (file_number << _LINE_BITS) + number, line

  def _place(self, position: int) -> str:
    """Returns `file:line`."""
    number = position & ((1 << _LINE_BITS) - 1)
    return f"{self._files[position >> _LINE_BITS]}:{number}"


def _input_files(patterns: Sequence[str]) -> list[epath.Path]:
  """Returns the files that match the patterns, sorted, each once."""
  files: dict[str, epath.Path] = {}
  for pattern in patterns:
    path = epath.Path(pattern)
    found: Iterable[epath.Path] = [path]
    if not is_remote(pattern):
      found = map(epath.Path, glob.glob(pattern, recursive=True))
    elif glob.has_magic(path.name):
      found = path.parent.glob(path.name)
    matched = {str(file): file for file in found if file.is_file()}
    if not matched:
      raise InputError(
        f"no file matches --input={pattern}; quote patterns so that the shell "
        "leaves them alone, and give JSON Lines files"
      )
    files |= matched
  return [files[name] for name in sorted(files)]
