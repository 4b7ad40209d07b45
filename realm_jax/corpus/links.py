"""Links between blocks: what a document links to, and where that is.

A shard keeps, for each block, the keys of the titles that its links lead to
(`shard.LINK_ARRAYS`), and not their rows. Each version of a corpus looks them
up among its own titles, so that an update rewrites no link: a new document with
a title is linked at once, and a removed one no longer. A link leads to the
first block of the first document with the title.

Titles are compared as Wikipedia does. They are put in Unicode's form NFC, white
space and underscores become one space, and the first letter a capital; all else
must be equal. The key is a hash of that. Redirects are not followed.

A block has one link to a title in each relation, the first, and none to the
title of its own document. Links come with a document, from a table
(`link_table.py`), or are the titles that its text mentions (`text.mentions`).
"""

import dataclasses
import functools
import itertools
import typing
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int

from realm_jax.corpus import CorpusError
from realm_jax.corpus.documents import Document, Link, hash63
from realm_jax.corpus.shard import Shard, ragged_indices
from realm_jax.corpus.summary import MOST_UNKNOWN_TITLES, BuildSummary
from realm_jax.text.languages import UNSPACED_CHARACTER
from realm_jax.text.mentions import Mentions, find_sorted
from realm_jax.text.normalization import byte_positions

if TYPE_CHECKING:
  from realm_jax.corpus.store import Corpus

# Where the links of a corpus come from.
LinkSource: TypeAlias = Literal["given", "mentions", "none"]


def require_links(links: str, link_table: str | None) -> None:
  """Raises `CorpusError` for links that cannot be kept."""
  if links not in typing.get_args(LinkSource):
    raise CorpusError(f"--links={links}; give given, mentions or none")
  if links == "none" and link_table is not None:
    raise CorpusError(
      "--link_table has links, and the corpus keeps none (--links=none); build "
      "it with --links=given or mentions"
    )


def normalized_title(title: str) -> str:
  """Returns what titles are compared by."""
  text = unicodedata.normalize("NFC", title).replace("_", " ")
  text = " ".join(text.split())
  return text[:1].upper() + text[1:]


def title_key(title: str) -> int:
  """Returns the key of a title: 63 bits, never negative."""
  return hash63(normalized_title(title))


# --- Following links ----------------------------------------------------


class Edges(NamedTuple):
  """Edges of n blocks, end to end: block i has `[offsets[i], offsets[i + 1])`.

  `targets` are rows, int32, and `relations` index `Corpus.relations`.
  """

  offsets: Int[np.ndarray, " starts"]
  targets: Int[np.ndarray, " e"]
  relations: Int[np.ndarray, " e"]


class Titles(NamedTuple):
  """Sorted keys of the titles in a version, and the first row of each."""

  keys: Int[np.ndarray, " k"]
  rows: Int[np.ndarray, " k"]


class Graph:
  """The edges between the blocks of one version of a corpus."""

  def __init__(self, corpus: "Corpus"):
    self._corpus = corpus
    firsts = itertools.accumulate(s.num_blocks for s in corpus.shards)
    self._first_rows = dict(zip(corpus.shards, (0, *firsts), strict=False))
    numbers = {name: i for i, name in enumerate(corpus.relations)}
    # The numbers, in the corpus, of the relations of shards that have links.
    self._relations = {
      shard: np.array([numbers[n] for n in shard.record["relations"]], np.int32)
      for shard in corpus.shards
      if "relations" in shard.record
    }

  def title_texts(self) -> Iterator[str]:
    """Yields the titles of all documents, and of some that were removed."""
    return itertools.chain.from_iterable(map(_titles, self._corpus.shards))

  @functools.cached_property
  def titles(self) -> Titles:
    """All titles: 12 bytes for each document, read when links are followed."""
    keys, rows = [], []
    for shard, first in self._first_rows.items():
      starts = shard.row_starts
      has_rows = starts[:-1] < starts[1:]
      keys.append(_title_keys(shard)[has_rows])
      rows.append(first + starts[:-1][has_rows])
    found, firsts = np.unique(np.concatenate(keys), return_index=True)
    return Titles(found, np.concatenate(rows)[firsts].astype(np.int32))

  def edges(self, rows: Int[np.ndarray, " n"]) -> Edges:
    """Returns the links of blocks, in the order of the text.

    Links to titles that no document has in this version are left out. The null
    block has none.
    """
    owners, targets, relations = [], [], []
    for shard, indices, positions in self._corpus.by_shard(rows):
      if shard not in self._relations:
        continue
      starts, limits = _bounds(shard.array("links_offsets"), positions)
      at = ragged_indices(starts, limits - starts)
      # Sorted keys are found in a tenth of the time.
      keys, numbers = np.unique(shard.array("links")[at], return_inverse=True)
      places, is_known = find_sorted(keys, self.titles.keys)
      is_there = is_known[numbers]
      owners.append(np.repeat(indices, limits - starts)[is_there])
      targets.append(self.titles.rows[places[numbers[is_there]]])
      relations.append(
        self._relations[shard][shard.array("link_relations")[at[is_there]]]
      )
    if not owners:
      return _no_edges(len(rows))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=len(rows))
    return Edges(
      np.append(0, np.cumsum(counts)),
      np.concatenate(targets)[order],
      np.concatenate(relations)[order],
    )

  def siblings(self, rows: Int[np.ndarray, " n"]) -> Edges:
    """Returns the other blocks of the documents of blocks, in order."""
    ranges = np.zeros((2, len(rows)), np.int64)
    for shard, indices, _ in self._corpus.by_shard(rows):
      first = self._first_rows[shard]
      documents = np.searchsorted(
        shard.row_starts, rows[indices] - first, side="right"
      )
      ranges[:, indices] = _bounds(shard.row_starts, documents - 1)
      ranges[:, indices] += first
    starts, limits = ranges
    targets = ragged_indices(starts, limits - starts)
    others = targets != np.repeat(rows, limits - starts)
    counts = np.maximum(limits - starts - 1, 0)
    return Edges(
      np.append(0, np.cumsum(counts)),
      targets[others].astype(np.int32),
      np.zeros(int(counts.sum()), np.int32),
    )


def _bounds(
  offsets: Int[np.ndarray, " n"], items: Int[np.ndarray, " m"]
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
  return offsets[items], offsets[items + 1]


def _no_edges(count: int) -> Edges:
  return Edges(np.zeros(count + 1, np.int64), *np.zeros((2, 0), np.int32))


def _title_keys(shard: Shard) -> Int[np.ndarray, " d"]:
  """Returns the keys of all titles of a shard."""
  if "relations" in shard.record:
    return shard.array("title_keys")
  return _array(map(title_key, _titles(shard)))


def _titles(shard: Shard) -> Iterator[str]:
  for number in range(len(shard.array("document_starts")) - 1):
    yield shard.item("titles", number).tobytes().decode()


# --- Building -----------------------------------------------------------


class _Links(NamedTuple):
  """Links of many documents, to the keys of titles.

  They are at characters `[start, limit)` of the text of their document, or
  anywhere: −1. Relations are names.
  """

  owners: Int[np.ndarray, " e"]
  keys: Int[np.ndarray, " e"]
  relations: np.ndarray
  places: Int[np.ndarray, "e 2"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linker:
  """Finds the blocks that have the links of documents.

  `known` are the keys of the titles of all documents, sorted. `mentions` finds
  titles in texts: the links of documents that have no others (if
  `links_unlinked`), and the places of links that a table has.
  """

  known: Int[np.ndarray, " k"]
  mentions: Mentions | None = None
  links_unlinked: bool = False

  @classmethod
  def of(
    cls,
    source: LinkSource,
    *,
    known: Int[np.ndarray, " k"],
    titles: Iterable[str],
    sample: Iterable[str],
    has_table: bool,
  ) -> "Linker | None":
    """Returns what finds links from a source; None if there are none.

    Titles are those of all documents, and common ones are left out by a sample
    of the texts. Both are read only if mentions are found.
    """
    if source == "none":
      return None
    mentions = None
    links_unlinked = source == "mentions"
    if links_unlinked or has_table:
      mentions = Mentions.of((title, title_key(title)) for title in titles)
      if links_unlinked:
        mentions = mentions.without_common(sample)
    return cls(known=known, mentions=mentions, links_unlinked=links_unlinked)

  def arrays(
    self,
    documents: Sequence[Document],
    text: bytes,
    *,
    byte_ranges: Int[np.ndarray, "b 2"],
    document_starts: Int[np.ndarray, " starts"],
    summary: BuildSummary,
  ) -> dict[str, np.ndarray]:
    """Returns `LINK_ARRAYS` of blocks, and counts links; relations by name.

    Blocks have `byte_ranges` of `text`, the texts of all documents with a byte
    between any two. A link belongs to the block in which it begins, or to the
    first one of its document if it is anywhere.
    """
    parts = [self._given(documents, summary), *self._mentioned(documents)]
    links = _Links(*map(np.concatenate, zip(*parts, strict=True)))
    own = _array(title_key(document.title) for document in documents)
    links = _Links(*(c[links.keys != own[links.owners]] for c in links))
    owners, keys, relations, places = links
    # Where each character begins in the text of all documents.
    first = np.cumsum([0, *(len(document.text) + 1 for document in documents)])
    starts = byte_positions(text.decode()) if len(owners) else np.zeros(1, int)
    is_placed = places[:, 0] >= 0
    at = (first[owners, np.newaxis] + places) * is_placed[:, np.newaxis]
    at = starts[at]
    firsts, lasts = document_starts[owners], document_starts[owners + 1] - 1
    blocks = np.searchsorted(byte_ranges[:, 0], at[:, 0], side="right") - 1
    blocks = np.where(is_placed, np.clip(blocks, firsts, lasts), firsts)
    # In a block, links that are anywhere come last.
    order = np.lexsort((places[:, 0], ~is_placed, blocks))
    _, numbers = np.unique(relations, return_inverse=True)
    order = _first_of_each(order, blocks, keys, numbers)
    blocks = blocks[order]
    ranges = np.clip(at[order], *byte_ranges[blocks].T[:, :, np.newaxis])
    ranges -= byte_ranges[blocks, :1]
    is_placed = is_placed[order] & (ranges[:, 0] < ranges[:, 1])
    ranges[~is_placed] = -1
    summary.links += len(order)
    is_known = find_sorted(keys[order], self.known)[1]
    summary.links_to_unknown += int((~is_known).sum())
    return {
      "links": keys[order],
      "links_offsets": np.searchsorted(blocks, np.arange(len(byte_ranges) + 1)),
      "link_relations": relations[order],
      "link_ranges": ranges,
      "title_keys": own,
    }

  def _given(
    self, documents: Sequence[Document], summary: BuildSummary
  ) -> _Links:
    """Returns the links that came with documents; notes unknown titles."""
    links = [
      (number, _located(link, document.text))
      for number, document in enumerate(documents)
      for link in document.links
    ]
    keys = _array(title_key(link.title) for _, link in links)
    unknown = np.flatnonzero(~find_sorted(keys, self.known)[1])
    titles = (links[i][1].title for i in unknown[:MOST_UNKNOWN_TITLES].tolist())
    summary.add_unknown(titles)
    return _Links(
      _array(number for number, _ in links),
      keys,
      np.array([link.relation for _, link in links], object),
      np.array([link[2:] for _, link in links], np.int64).reshape(-1, 2),
    )

  def _mentioned(self, documents: Sequence[Document]) -> Iterator[_Links]:
    """Yields the links of documents that do not come with links."""
    numbers = [
      number
      for number, document in enumerate(documents)
      if document.table_links or (self.links_unlinked and not document.links)
    ]
    if self.mentions is None or not numbers:
      return
    found = self.mentions.find([documents[number].text for number in numbers])
    firsts = np.searchsorted(found.texts, np.arange(len(numbers) + 1))
    for number, start, limit in zip(
      numbers, firsts[:-1], firsts[1:], strict=True
    ):
      keys = self.mentions.keys[found.titles[start:limit]]
      places = found.ranges[start:limit]
      if table := documents[number].table_links:
        # Each where it is mentioned first.
        mentioned, own = np.unique(keys, return_index=True)
        at, is_there = find_sorted(table.keys, mentioned)
        places = np.append(places, [[-1, -1]], axis=0)
        places = places[np.where(is_there, np.append(own, -1)[at], -1)]
        keys = table.keys
        if not table.is_first:
          keys, places = keys[is_there], places[is_there]
      plain = np.full(len(keys), "", object)
      yield _Links(np.full(len(keys), number), keys, plain, places)


def _located(link: Link, text: str) -> Link:
  """Returns a link where its title first occurs in a text as whole words."""
  if link.start >= 0:
    return link
  title = link.title.strip()
  other = title[0].swapcase() + title[1:]
  starts = [_first_place(text, one) for one in {title, other}]
  start = min((start for start in starts if start >= 0), default=-1)
  limit = start + len(title) if start >= 0 else -1
  return link._replace(start=start, limit=limit)


def _first_place(text: str, words: str) -> int:
  start = text.find(words)
  while start >= 0 and (
    _joins(text, start) or _joins(text, start + len(words))
  ):
    start = text.find(words, start + 1)
  return start


def _joins(text: str, place: int) -> bool:
  """Returns whether a word has the characters before and after a place."""
  around = text[max(place - 1, 0) : place + 1]
  is_inside = len(around) == 2 and place > 0 and around.isalnum()
  return is_inside and not UNSPACED_CHARACTER.search(around)


def _first_of_each(
  order: Int[np.ndarray, " e"], *columns: Int[np.ndarray, " e"]
) -> Int[np.ndarray, " u"]:
  """Returns the first in an order of all that have equal values in columns."""
  grouped = np.lexsort([column[order] for column in columns])
  rows = np.stack([column[order[grouped]] for column in columns], axis=1)
  is_first = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))[: len(rows)]
  return order[np.sort(grouped[is_first])]


def _array(values: Iterable[int]) -> Int[np.ndarray, " n"]:
  return np.fromiter(values, np.int64)
