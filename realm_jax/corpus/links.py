"""Links between blocks: what a document links to, and where that is.

A shard keeps, for each block, the keys of the titles that its links lead to
(`shard.LINK_ARRAYS`), and not their rows. Each version of a corpus looks them
up among its own titles, so that an update rewrites no link: a new document is
linked at once, and a removed one no longer. A link leads to the first block of
the first document with the title.

Titles are compared as Wikipedia does. They are put in Unicode's form NFC, white
space and underscores become one space, and the first letter a capital; all else
must be equal. The key is a hash of that. Redirects are not followed.

A block has one link to a title in each relation, the first, and none to the
title of its own document.
"""

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.documents import Document, Link, hash63
from realm_jax.corpus.shard import ragged_indices
from realm_jax.corpus.summary import BuildSummary
from realm_jax.text.languages import UNSPACED_CHARACTER
from realm_jax.text.mentions import Mentions, find_sorted
from realm_jax.text.normalization import byte_positions

if TYPE_CHECKING:
  from realm_jax.corpus.store import Corpus

# Where the links of a corpus come from.
LinkSource: TypeAlias = Literal["given", "mentions", "none"]
# Key and number of the document, and the link.
_Found: TypeAlias = tuple[int, int, str, str, int, int]


def normalized_title(title: str) -> str:
  """Returns what titles are compared by."""
  text = unicodedata.normalize("NFC", title).replace("_", " ")
  text = " ".join(text.split())
  return text[:1].upper() + text[1:]


def title_key(title: str) -> int:
  """Returns the key of a title: 63 bits, never negative."""
  return hash63(normalized_title(title))


class Edges(NamedTuple):
  """Edges of n blocks, end to end: block i has `[offsets[i], offsets[i + 1])`.

  `targets` are rows, int32, and `relations` index `Corpus.relations`.
  """

  offsets: Int[np.ndarray, " n+1"]
  targets: Int[np.ndarray, " e"]
  relations: Int[np.ndarray, " e"]


class Graph:
  """The edges between the blocks of one version of a corpus."""

  def __init__(self, corpus: "Corpus"):
    self._corpus = corpus
    firsts = itertools.accumulate(s.num_blocks for s in corpus.shards)
    self._first_rows = dict(zip(corpus.shards, (0, *firsts), strict=False))
    # By the shard's number of a relation, its number in the corpus.
    self._relations = {
      shard: np.array(
        [corpus.relations.index(name) for name in names], np.int32
      )
      for shard in corpus.shards
      if (names := shard.record.get("relations"))
    }

  @functools.cached_property
  def titles(self) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"]]:
    """The sorted keys of all titles, and the first row of each, int32."""
    keys, rows = [], []
    for shard, first in self._first_rows.items():
      starts, limits = shard.row_starts[:-1], shard.row_starts[1:]
      if shard in self._relations:
        own = shard.array("title_keys")
      else:
        own = _array(map(title_key, shard.titles()))
      keys.append(own[starts < limits])
      rows.append(first + starts[starts < limits])
    found, firsts = np.unique(np.concatenate(keys), return_index=True)
    return found, np.concatenate(rows)[firsts].astype(np.int32)

  def edges(self, rows: Int[np.ndarray, " n"]) -> Edges:
    """Returns the links of blocks, in the order of the text.

    Links to titles that no document has in this version are left out. The null
    block has none.
    """
    owners, targets, relations = ([np.zeros(0, np.int32)] for _ in range(3))
    for shard, indices, positions in self._corpus.by_shard(rows):
      if shard not in self._relations:
        continue
      offsets = shard.array("links_offsets")
      counts = offsets[positions + 1] - offsets[positions]
      at = ragged_indices(offsets[positions], counts)
      # Sorted keys are found in a tenth of the time.
      keys, numbers = np.unique(shard.array("links")[at], return_inverse=True)
      places, is_known = find_sorted(keys, self.titles[0])
      is_there = is_known[numbers]
      owners.append(np.repeat(indices, counts)[is_there])
      targets.append(self.titles[1][places[numbers[is_there]]])
      own = shard.array("link_relations")[at[is_there]]
      relations.append(self._relations[shard][own])
    order = np.argsort(np.concatenate(owners), kind="stable")
    counts = np.bincount(np.concatenate(owners), minlength=len(rows))
    return Edges(
      np.append(0, np.cumsum(counts)),
      np.concatenate(targets)[order],
      np.concatenate(relations)[order],
    )

  def siblings(self, rows: Int[np.ndarray, " n"]) -> Edges:
    """Returns the other blocks of the documents of blocks, in order."""
    starts, limits = np.zeros((2, len(rows)), np.int64)
    for shard, indices, _ in self._corpus.by_shard(rows):
      bounds, first = shard.row_starts, self._first_rows[shard]
      documents = np.searchsorted(bounds, rows[indices] - first, side="right")
      starts[indices] = first + bounds[documents - 1]
      limits[indices] = first + bounds[documents]
    targets = ragged_indices(starts, limits - starts).astype(np.int32)
    others = targets[targets != np.repeat(rows, limits - starts)]
    counts = np.maximum(limits - starts - 1, 0)
    return Edges(np.append(0, np.cumsum(counts)), others, np.zeros_like(others))


def find_mentions(titles: Iterable[str], sample: Iterable[str]) -> Mentions:
  """Returns what finds titles, but those that a sample of texts has often."""
  return Mentions.of(((title, title_key(title)) for title in titles), sample)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linker:
  """Finds the blocks that have the links of documents.

  `known` are the sorted keys of the titles of all documents. With `mentions`,
  documents that come without links have the titles that their texts mention.
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
    """Returns `LINK_ARRAYS` of blocks, and counts links; relations by name.

    Blocks have `byte_ranges` of `text`, the texts of all documents with a byte
    between any two. A link belongs to the block in which it begins, or to the
    first one of its document if it is anywhere.
    """
    title_keys = _array(title_key(document.title) for document in documents)
    links = [
      (title_key(link.title), number, *_located(link, document.text))
      for number, document in enumerate(documents)
      for link in (*document.links, *document.table_links)
    ]
    links += self._mentioned(documents)
    links = [link for link in links if link[0] != title_keys[link[1]]]
    relations = np.array([link[3] for link in links], object)
    columns = [(*link[:2], *link[4:]) for link in links]
    keys, owners, *places = np.array(columns, np.int64).reshape(-1, 4).T
    # Where each character begins in the text of all documents.
    starts = byte_positions(text.decode()) if links else np.zeros(1, np.int64)
    firsts = np.cumsum([0, *(len(document.text) + 1 for document in documents)])
    is_placed = places[0] >= 0
    places = np.where(is_placed, firsts[owners] + places, 0)
    ranges = starts[np.minimum(places, len(starts) - 1)].T
    first, last = document_starts[owners], document_starts[owners + 1] - 1
    blocks = np.searchsorted(byte_ranges[:, 0], ranges[:, 0], side="right") - 1
    blocks = np.where(is_placed, np.clip(blocks, first, last), first)
    # Of those that are equal, the first in the text. Links that are anywhere
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
    """Yields the titles in texts of documents that have no links."""
    plain = [
      number
      for number, document in enumerate(documents)
      if not (document.links or document.table_links)
    ]
    if self.mentions is not None and plain:
      found = self.mentions.find([documents[number].text for number in plain])
      for text, key, (start, limit) in zip(*map(list, found), strict=True):
        yield int(key), plain[text], "", "", int(start), int(limit)


def _located(link: Link, text: str) -> Link:
  """Returns a link where its title first occurs in a text as whole words."""
  title = link.title.strip()
  # The first letter may be a capital or not.
  either = (title, title[0].swapcase() + title[1:])
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
  """Returns whether a word has the characters before and after a place."""
  around = text[place - 1 : place + 1] if place else ""
  is_word = len(around) == 2 and around.isalnum()
  return is_word and not UNSPACED_CHARACTER.search(around)


def _array(values: Iterable[int]) -> Int[np.ndarray, " n"]:
  return np.fromiter(values, np.int64)
