"""Links between blocks, by the titles of documents.

For each block, a shard stores the keys of the titles that its links lead to
(`shard.LINK_ARRAYS`), instead of rows. Each version of a corpus looks them up
among its own titles, so that an update rewrites no links: links to a new
document work at once, and links to a removed one no longer do. A link leads to
the first block of the first document with the title.

Titles are compared as in Wikipedia: they are normalized to Unicode's form NFC,
white space and underscores become one space, and the first letter a capital.
The key is a hash of the normalized title. Redirects are not followed.

A block has one link to a title in each relation, the first, and none to the
title of its own document.
"""

import functools
import itertools
import unicodedata
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Int

from realm_jax.corpus.documents import hash63
from realm_jax.corpus.shard import ragged_indices
from realm_jax.text.mentions import find_sorted

if TYPE_CHECKING:
  from realm_jax.corpus.store import Corpus


def normalized_title(title: str) -> str:
  """Returns a title in the form in which titles are compared."""
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
    # Maps each shard's numbers of relations to the corpus's.
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
        shard_keys = shard.array("title_keys")
      else:
        shard_keys = np.fromiter(map(title_key, shard.titles()), np.int64)
      keys.append(shard_keys[starts < limits])
      rows.append(first + starts[starts < limits])
    unique_keys, firsts = np.unique(np.concatenate(keys), return_index=True)
    return unique_keys, np.concatenate(rows)[firsts].astype(np.int32)

  def edges(self, rows: Int[np.ndarray, " n"]) -> Edges:
    """Returns the links of blocks, in the order of the text.

    Links to titles without a document in this version are left out. The null
    block has no links.
    """
    owners, targets, relations = ([np.zeros(0, np.int32)] for _ in range(3))
    for shard, indices, positions in self._corpus.by_shard(rows):
      if shard not in self._relations:
        continue
      offsets = shard.array("links_offsets")
      counts = offsets[positions + 1] - offsets[positions]
      links = ragged_indices(offsets[positions], counts)
      # Looking up sorted keys takes a tenth of the time.
      keys = shard.array("links")[links]
      keys, numbers = np.unique(keys, return_inverse=True)
      places, is_known = find_sorted(keys, self.titles[0])
      is_there = is_known[numbers]
      owners.append(np.repeat(indices, counts)[is_there])
      targets.append(self.titles[1][places[numbers[is_there]]])
      relation_numbers = shard.array("link_relations")[links[is_there]]
      relations.append(self._relations[shard][relation_numbers])
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
