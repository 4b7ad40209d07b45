"""A table of links between titles, such as Wikipedia's, beside the documents.

Each line has the title of a page and the title of one that it links to, with a
tab between. A file may be compressed (.gz, .bz2, .xz, .zst).
"""

import array
import functools
from collections.abc import Iterable, Iterator

import numpy as np
from etils import epath
from jaxtyping import Int

from realm_jax.corpus import InputError
from realm_jax.corpus.documents import Document, TableLinks
from realm_jax.corpus.links import title_key
from realm_jax.storage.line_files import lines_of
from realm_jax.text.mentions import find_sorted

# Keys of titles that are kept in memory, of those that many pages link to.
_NUM_CACHED = 1 << 18


class LinkTable:
  """The links of documents, by the keys of their titles.

  A line takes 12 bytes of memory, and while the table is read 28. Lines of
  pages that are no document are left out, and their number is `num_others`.

  Args:
    path: File of the table.
    titles: Sorted keys of the titles of documents.

  Raises:
    InputError: A line is none of the table.
  """

  def __init__(self, path: epath.PathLike, titles: Int[np.ndarray, " k"]):
    self._titles = titles
    key_of = functools.lru_cache(_NUM_CACHED)(title_key)
    pages, targets = array.array("i"), array.array("q")
    self.num_others = 0
    before, page = None, -1
    for number, line in enumerate(lines_of(path), start=1):
      try:
        source, target = line.decode().rstrip("\r\n").split("\t")
      except ValueError as error:
        raise InputError(
          f"{path}:{number} is no line of a table of links ({error}); want two "
          "titles in UTF-8, with a tab between"
        ) from None
      # Most tables have the lines of a page together.
      if source != before:
        (found,), (is_there,) = find_sorted(
          np.array([title_key(source)]), titles
        )
        before, page = source, int(found) if is_there else -1
      if page < 0:
        self.num_others += 1
        continue
      pages.append(page)
      targets.append(key_of(target))
    counts = np.bincount(np.asarray(pages), minlength=len(titles))
    self._offsets = np.append(0, np.cumsum(counts))
    order = np.argsort(np.asarray(pages), kind="stable")
    self._targets = np.asarray(targets).view(np.int64)[order]

  def attached(self, documents: Iterable[Document]) -> Iterator[Document]:
    """Yields documents with their links of the table."""
    is_taken = np.zeros(len(self._titles), bool)
    for document in documents:
      (page,), (is_there,) = find_sorted(
        np.array([title_key(document.title)]), self._titles
      )
      keys = self._targets[slice(*self._offsets[page : page + 2])]
      if is_there and len(keys):
        links = TableLinks(keys, is_first=not is_taken[page])
        is_taken[page] = True
        document = document._replace(table_links=links)
      yield document
