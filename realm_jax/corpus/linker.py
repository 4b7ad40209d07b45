"""Finds the links of documents while their blocks are made (see `links.py`)."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.documents import Document, Link
from realm_jax.corpus.links import title_key
from realm_jax.corpus.summary import BuildSummary
from realm_jax.text.languages import UNSPACED_CHARACTER
from realm_jax.text.mentions import Mentions, find_sorted
from realm_jax.text.normalization import byte_positions

# Source of a corpus's links.
LinkSource: TypeAlias = Literal["given", "mentions", "none"]
# Key of titles of white space and underscores, to which no link leads.
_NO_TITLE = title_key("")
# Key and number of the document, and fields of the link.
_Found: TypeAlias = tuple[int, int, str, str, int, int]


def find_mentions(titles: Iterable[str], sample: Iterable[str]) -> Mentions:
  """Returns a finder of titles, except for frequent ones in a sample."""
  return Mentions.of(((title, title_key(title)) for title in titles), sample)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linker:
  """Assigns the links of documents to blocks.

  `known` has the sorted keys of the titles of all documents. With `mentions`,
  documents without links get links to the titles that their texts mention.
  """

  known: Int[np.ndarray, " k"]
  mentions: Mentions | None = None

  def arrays(
    self,
    documents: Sequence[Document],
    text: bytes,
    *,
    byte_ranges: Int[np.ndarray, "b 2"],
    document_starts: Int[np.ndarray, " starts"],
    summary: BuildSummary,
  ) -> dict[str, np.ndarray]:
    """Returns `LINK_ARRAYS` of blocks, with names of relations; counts links.

    Blocks have `byte_ranges` of `text`, the texts of all documents with a byte
    between any two. A link belongs to the block in which it begins. A link
    without a position belongs to the first block of its document.
    """
    title_keys = np.fromiter(
      (title_key(document.title) for document in documents), np.int64
    )
    links = [
      (title_key(link.title), number, *_located(link, document.text))
      for number, document in enumerate(documents)
      for link in (*document.links, *document.table_links)
    ]
    links += self._mentioned(documents)
    links = [
      link for link in links if link[0] not in (title_keys[link[1]], _NO_TITLE)
    ]
    relations = np.array([link[3] for link in links], object)
    columns = [(*link[:2], *link[4:]) for link in links]
    keys, owners, *places = np.array(columns, np.int64).reshape(-1, 4).T
    # Byte position of each character in the text of all documents.
    starts = byte_positions(text.decode()) if links else np.zeros(1, np.int64)
    firsts = np.cumsum([0, *(len(document.text) + 1 for document in documents)])
    is_placed = places[0] >= 0
    places = np.where(is_placed, firsts[owners] + places, 0)
    ranges = starts[np.minimum(places, len(starts) - 1)].T
    first, last = document_starts[owners], document_starts[owners + 1] - 1
    blocks = np.searchsorted(byte_ranges[:, 0], ranges[:, 0], side="right") - 1
    blocks = np.where(is_placed, np.clip(blocks, first, last), first)
    # Of equal links, the first in the text counts. Links without a position
    # come last.
    order = np.lexsort((ranges[:, 0], ~is_placed, blocks))
    _, numbers = np.unique(relations, return_inverse=True)
    same = np.stack([blocks, keys, numbers], axis=1)[order]
    order = order[np.sort(np.unique(same, axis=0, return_index=True)[1])]
    blocks, bounds = blocks[order], byte_ranges[blocks[order]]
    ranges = (
      np.clip(ranges[order], bounds[:, :1], bounds[:, 1:]) - bounds[:, :1]
    )
    ranges[~is_placed[order] | (ranges[:, 0] >= ranges[:, 1])] = -1
    unknown = order[~find_sorted(keys[order], self.known)[1]]
    summary.add_links(len(order), [links[i][2] for i in unknown.tolist()])
    return {
      "links": keys[order],
      "links_offsets": np.searchsorted(blocks, np.arange(len(byte_ranges) + 1)),
      "link_relations": relations[order],
      "link_ranges": ranges,
      "title_keys": title_keys,
    }

  def _mentioned(self, documents: Sequence[Document]) -> Iterator[_Found]:
    """Yields titles that are mentioned in documents without links."""
    plain = [
      number
      for number, document in enumerate(documents)
      if not (document.links or document.table_links)
    ]
    if self.mentions is not None and plain:
      texts = [documents[number].text for number in plain]
      mentions = self.mentions.find(texts)
      for text, key, (start, limit) in zip(*map(list, mentions), strict=True):
        yield int(key), plain[text], "", "", int(start), int(limit)


def _located(link: Link, text: str) -> Link:
  """Places a link where its title first occurs in a text, as whole words."""
  title = link.title.strip()
  # Tries both cases of the first letter.
  either = (title, title[:1].swapcase() + title[1:])
  starts = [_first_place(text, one) for one in either if link.start < 0]
  start = min((start for start in starts if start >= 0), default=-1)
  if start < 0:
    return link
  return link._replace(start=start, limit=start + len(title))


def _first_place(text: str, words: str) -> int:
  start = text.find(words)
  while start >= 0 and (
    _joins(text, start) or _joins(text, start + len(words))
  ):
    start = text.find(words, start + 1)
  return start


def _joins(text: str, place: int) -> bool:
  """Returns whether the characters around a position belong to one word."""
  around = text[place - 1 : place + 1] if place else ""
  is_word = len(around) == 2 and around.isalnum()
  return is_word and not UNSPACED_CHARACTER.search(around)
