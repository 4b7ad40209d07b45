"""A table of links between titles, such as Wikipedia's, in a separate file.

Each line has the title of a page, a tab, and a title that it links to. The file
may be compressed (.gz, .bz2, .xz, .zst). Every document with the title of a
page gets the links of the page.
"""

import array

import numpy as np
from etils import epath

from realm_jax.corpus import InputError
from realm_jax.corpus.documents import Document, Link
from realm_jax.corpus.links import normalized_title
from realm_jax.storage.line_files import lines_of


class LinkTable:
  """The links of a table, in memory.

  While it is read, a line takes 20 bytes, and a title 175: 6 GB for 200 million
  lines with 10 million titles.

  Raises:
    InputError: A line is malformed.
  """

  def __init__(self, path: epath.PathLike):
    numbers: dict[str, int] = {}
    ends = array.array("i"), array.array("i")
    texts, known = ["", ""], [-1, -1]
    for line_number, line in enumerate(lines_of(path), start=1):
      try:
        source, target = line.decode().rstrip("\r\n").split("\t")
        if not (source.strip() and target.strip()):
          raise ValueError("a title is empty")
      except ValueError as error:
        raise InputError(
          f"{path}:{line_number} is no line of a table of links ({error}); "
          "want two titles in UTF-8, with a tab between"
        ) from None
      for i, text in enumerate((source, target)):
        # The lines of a page are mostly consecutive.
        if text != texts[i] or known[i] < 0:
          texts[i], title = text, normalized_title(text)
          known[i] = numbers.setdefault(title, len(numbers))
        ends[i].append(known[i])
    pages, targets = map(np.asarray, ends)
    self._numbers, self._titles = numbers, [*numbers]
    counts = np.bincount(pages, minlength=len(numbers))
    self._offsets = np.append(0, np.cumsum(counts))
    self._targets = targets[np.argsort(pages, kind="stable")]

  def attached(self, document: Document) -> Document:
    """Returns a document with the links of its title in the table."""
    page = self._numbers.get(normalized_title(document.title))
    if page is None:
      return document
    targets = self._targets[slice(*self._offsets[page : page + 2])]
    links = [Link(self._titles[number]) for number in targets.tolist()]
    return document._replace(table_links=links)
