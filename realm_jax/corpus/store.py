"""A corpus on disk, memory-mapped and read only."""

import copy
import dataclasses
import functools
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Int

from realm_jax.corpus import CorpusError
from realm_jax.corpus import manifest as manifests
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.links import Edges, Graph
from realm_jax.corpus.manifest import Manifest, files_of
from realm_jax.corpus.shard import NUM_SPECIAL_TOKENS, Shard
from realm_jax.corpus.views import View
from realm_jax.storage.staging import StagedFiles
from realm_jax.text.languages import ENGLISH
from realm_jax.text.vocabulary import BertVocabulary
from realm_jax.text.vocabulary_files import read_vocabulary

NULL_ROW = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
  """One block of a corpus, whose arrays and texts are read on first use.

  Token ranges refer to the body. An edited block has another `text`, with its
  `token_ids` and `byte_ranges`, but no sentences and spans.
  """

  row: int
  shard: Shard
  position: int

  def replace(self, **values: Any) -> "Block":
    """Returns a copy of the block, in memory, with other property values."""
    block = copy.copy(self)
    vars(block).update(values)
    return block

  @functools.cached_property
  def parts(self) -> "tuple[Block, ...]":
    """Blocks of the path from which `paths.joined_block` made this block."""
    return (self,)

  @functools.cached_property
  def document_id(self) -> str:
    """The id of the block's document."""
    return self._document_text("document_ids")

  @functools.cached_property
  def ordinal(self) -> int:
    """The block's number in its document, from 0."""
    document = self.shard.document(self.position)
    return self.position - int(self.shard.array("document_starts")[document])

  @functools.cached_property
  def id(self) -> str:
    """The document's id and `ordinal`, joined by a colon; an id for people."""
    return f"{self.document_id}:{self.ordinal}"

  @functools.cached_property
  def title(self) -> str:
    """The title of the block's document."""
    return self._document_text("titles")

  @functools.cached_property
  def url(self) -> str:
    """The document's URL; empty if the input did not give one."""
    return self._document_text("urls")

  @functools.cached_property
  def fields(self) -> dict[str, Any]:
    """The document's fields that `build_corpus --fields` keeps."""
    return self.shard.fields(self.shard.document(self.position))

  def _document_text(self, name: str) -> str:
    document = self.shard.document(self.position)
    return self.shard.item(name, document).tobytes().decode()

  @functools.cached_property
  def text(self) -> str:
    """The block's text as it was written, without the title."""
    return self.shard.item("bodies", self.position).tobytes().decode()

  @functools.cached_property
  def token_ids(self) -> Int[np.ndarray, " l"]:
    """The tokens of title and body, int32, without specials."""
    return self.shard.item("token_ids", self.position).astype(np.int32)

  @functools.cached_property
  def title_length(self) -> int:
    """Number of `token_ids` that belong to the title."""
    return int(self.shard.array("title_lengths")[self.position])

  @property
  def body_token_ids(self) -> Int[np.ndarray, " b"]:
    """The tokens of the body, int32."""
    return self.token_ids[self.title_length :]

  @functools.cached_property
  def byte_ranges(self) -> Int[np.ndarray, "b 2"]:
    """Each body token's (start, limit) in the UTF-8 of `text`."""
    return self.shard.item("byte_ranges", self.position)

  @functools.cached_property
  def sentences(self) -> Int[np.ndarray, "s 2"]:
    """The token ranges of the sentences."""
    return self.shard.item("sentences", self.position)

  @functools.cached_property
  def salient_spans(self) -> Int[np.ndarray, "p 2"]:
    """Token ranges of salient spans, each inside one sentence."""
    return self.shard.item("salient_spans", self.position)

  @functools.cached_property
  def salient_span_kinds(self) -> Int[np.ndarray, " p"]:
    """The kind of each salient span, an index of the corpus's `span_kinds`."""
    numbers = self.shard.item(
      "salient_span_kinds", self.position, of="salient_spans"
    )
    return self.shard.kinds[numbers]


# The null block, which stands for no evidence. It has no words, and is not in
# any corpus.
NULL_BLOCK = Block(
  NULL_ROW,
  Shard({"name": "", "num_blocks": 0, "files": [], "span_kinds": []}, Path, ()),
  position=0,
).replace(
  **dict.fromkeys(("id", "document_id", "title", "url", "text"), ""),
  fields={},
  token_ids=np.zeros(0, np.int32),
  title_length=0,
)


class Corpus:
  """All blocks of one corpus version; open one with `Corpus.open`.

  Rows 0…N−1 index the blocks of one version; arrays refer to blocks by rows.
  Ids are stable across versions and outlive a run. The null block is row −1: it
  is not stored and reads as `[CLS] [SEP] [SEP]`. Other rows raise `IndexError`.

  Attributes:
    name: Name of the corpus. It is part of the block ids, so that two corpora
      have different ids.
    source: Directory that was opened, possibly on an object store.
    language: ISO 639-1 code of documents that do not state their language.
    span_kinds: Names of the kinds of salient spans.
    relations: Names of the relations of links; the first, "", is a plain link.
  """

  def __init__(self, source: epath.Path, manifest: Manifest):
    self.source = source
    # Open versions by fingerprint, shared between the versions of a corpus.
    self._opened = weakref.WeakValueDictionary[str, Corpus]()
    self.fingerprint = manifest["fingerprint"]
    self.version = manifest["corpus_version"]
    self.name = manifest["name"]
    self.block_length = manifest["block_length"]
    self.vocab_sha256 = manifest["vocabulary"]["sha256"]
    self.vocab_size = manifest["vocabulary"]["size"]
    self.summary = manifest["summary"]
    self.drop_titles = tuple(manifest["drop_titles"])
    self.fields = tuple(manifest.get("fields", ()))
    self.language = manifest.get("language", ENGLISH)
    # Records of the models of views, by name.
    self.views: Mapping[str, Any] = manifest.get("views", {})
    # Sizes of the views' vocabularies.
    self.view_sizes = {name: view["size"] for name, view in self.views.items()}
    self._staged = StagedFiles(
      source,
      files_of(manifest),
      error=CorpusError,
      advice="; copy or build the corpus again",
    )
    # Arrays whose files have been copied from an object store.
    self._copied: set[str] = set()
    ids = manifest["vocabulary"]["special_ids"]
    self._cls_id, self._sep_id = ids["cls"], ids["sep"]
    records = manifest["shards"]
    kinds = dict.fromkeys(kind for r in records for kind in r["span_kinds"])
    self.span_kinds = tuple(kinds)
    names = (name for r in records for name in r.get("relations", ()))
    self.relations = tuple(dict.fromkeys(("", *names)))
    self.has_links = any("relations" in record for record in records)
    # Builds of earlier releases read no links.
    self.link_source = manifest.get("links", "none")
    self.shards = [Shard(r, self.local, self.span_kinds) for r in records]
    sizes = [shard.num_blocks for shard in self.shards]
    self.num_blocks = sum(sizes)
    self._first_rows = np.append(0, np.cumsum(sizes))

  # --- Versions and files -----------------------------------------------

  @classmethod
  def open(
    cls,
    directory: epath.PathLike,
    *,
    version: int | None = None,
    fingerprint: str | None = None,
  ) -> "Corpus":
    """Opens the newest version, or the given one, without reading arrays.

    Raises:
      CorpusError: There is no corpus, it has no such version or another
        format, or a file is missing or has another size.

    Example:
      >>> corpus = Corpus.open("corpus")
      >>> corpus.num_blocks, corpus.block(0).title
      (28, 'Ada Stone')
    """
    source = epath.Path(directory)
    manifest = manifests.read(source, version=version, fingerprint=fingerprint)
    corpus = cls(source, manifest)
    corpus._staged.verify(checksums=False)
    corpus._opened[corpus.fingerprint] = corpus
    return corpus

  def __reduce__(self) -> tuple[Any, ...]:
    opened = functools.partial(
      Corpus.open, version=self.version, fingerprint=self.fingerprint
    )
    return opened, (self.source,)

  def newest(self) -> "Corpus":
    """Returns the newest version of this corpus; raises as `at` does."""
    manifest = manifests.read(self.source)
    return self.at(manifest["corpus_version"], manifest["fingerprint"])

  def at(self, version: int, fingerprint: str) -> "Corpus":
    """Returns a version; while it is in use, it is opened only once.

    Raises `CorpusError` if it is missing, or has another vocabulary or block
    length.
    """
    known = self._opened.get(fingerprint)
    if known is not None and known.version == version:
      return known
    other = Corpus.open(self.source, version=version, fingerprint=fingerprint)
    ours = self.vocab_sha256, self.block_length
    if (other.vocab_sha256, other.block_length) != ours:
      raise CorpusError(
        f"{self.source} was built again, with another vocabulary or block "
        f"length than the corpus in use (fingerprint {self.fingerprint[:12]}); "
        "an update keeps both"
      )
    other._opened = self._opened
    self._opened[fingerprint] = other
    return other

  def has_version(self, version: int, fingerprint: str) -> bool:
    """Returns whether the directory still has this version."""
    try:
      manifests.read(self.source, version=version, fingerprint=fingerprint)
    except CorpusError:
      return False
    return True

  def verify(self) -> None:
    """Reads every file and compares checksums; raises `CorpusError`."""
    self._staged.verify()

  def local(self, path: str) -> Path:
    """Returns a local file, by its path in the directory.

    Files on an object store are copied to the cache on first use, an array in
    all shards at once. Arrays that a run does not read are not copied.
    """
    kind = _kind(path)
    if self._staged.is_copied and kind not in self._copied:
      logging.info("Copying %s of %s to the cache", kind, self.source)
      paths = self._staged.paths()
      self._staged.get([other for other in paths if _kind(other) == kind])
      self._copied.add(kind)
    return self._staged.root / path

  def require_vocabulary_of(self, other: "Corpus") -> None:
    """Raises `CorpusError` if another corpus has another vocabulary."""
    if self.vocab_sha256 != other.vocab_sha256:
      raise CorpusError(
        f"{self.source} has another vocabulary than {other.source}; "
        f"build it again with --vocab={other.source}"
      )

  @functools.cached_property
  def vocabulary(self) -> BertVocabulary:
    """The vocabulary that the corpus was built with."""
    vocabulary = read_vocabulary(self.source)
    if vocabulary.digest != self.vocab_sha256:
      raise CorpusError(
        f"the vocabulary of {self.source} (vocab.txt and vocab.json, or "
        "tokenizer.json) is not the one that the corpus was built with; put "
        "that back, or build the corpus again"
      )
    return vocabulary

  def view(self, name: str | None) -> View:
    """Opens a view: `corpus.view("t5").gather(rows, 250)`; see `View`."""
    return View(self, name)

  # --- All blocks -------------------------------------------------------

  def _by_block(self, name: str) -> np.ndarray:
    arrays = [shard.array(name)[shard.kept] for shard in self.shards]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

  @functools.cached_property
  def block_ids(self) -> Int[np.ndarray, " N"]:
    """The stable id of each block: see `documents.block_id`."""
    return self._by_block("block_ids")

  @functools.cached_property
  def content_hashes(self) -> Int[np.ndarray, " N"]:
    """A hash of each block's title and body: see `block_builder`."""
    return self._by_block("content_hashes")

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, " N"]:
    """Tokens of `[CLS] title [SEP] body [SEP]`, int32."""
    lengths = [shard.lengths[shard.kept] for shard in self.shards]
    return (np.concatenate(lengths) + NUM_SPECIAL_TOKENS).astype(np.int32)

  @functools.cached_property
  def _id_order(self) -> Int[np.ndarray, " N"]:
    return np.argsort(self.block_ids, kind="stable").astype(np.int32)

  @functools.cached_property
  def _removed_ids(self) -> frozenset[int]:
    ids = [shard.array("block_ids")[shard.removed] for shard in self.shards]
    return frozenset(np.concatenate(ids).tolist())

  def rows_of(
    self, ids: Int[np.ndarray, "*s"] | np.int64
  ) -> Int[np.ndarray, "*s"]:
    """Returns the rows of block ids, int32; −1 for an unknown id."""
    ids = np.asarray(ids, np.int64)
    index = np.searchsorted(self.block_ids, ids, sorter=self._id_order)
    rows = self._id_order[np.minimum(index, self.num_blocks - 1)]
    return np.where(self.block_ids[rows] == ids, rows, np.int32(NULL_ROW))

  def document_rows(self, document_id: str) -> Int[np.ndarray, " n"]:
    """Returns the rows of a document's blocks, int32; none if it is missing."""
    rows, ordinal = list[int](), 0
    while True:
      number = block_id(self.name, document_id, ordinal)
      if (row := int(self.rows_of(np.int64(number)))) != NULL_ROW:
        rows.append(row)
      elif number not in self._removed_ids:
        return np.array(rows, np.int32)
      ordinal += 1

  # --- One block --------------------------------------------------------

  def block(self, row: int) -> Block:
    """Returns a block; raises `IndexError` for a row that does not exist."""
    if not 0 <= row < self.num_blocks:
      raise IndexError(
        f"row {row} is not in this corpus of {self.num_blocks} blocks"
      )
    number = int(np.searchsorted(self._first_rows, row, side="right")) - 1
    shard = self.shards[number]
    index = np.array([row - self._first_rows[number]])
    return Block(row, shard, int(shard.positions(index)[0]))

  # --- Many blocks ------------------------------------------------------

  def by_shard(
    self, rows: Int[np.ndarray, " n"]
  ) -> Iterator[tuple[Shard, Int[np.ndarray, " m"], Int[np.ndarray, " m"]]]:
    """Yields each shard, the indices of its rows in `rows`, and positions."""
    if rows.size and not NULL_ROW <= rows.min() <= rows.max() < self.num_blocks:
      raise IndexError(
        f"rows {rows.min()}…{rows.max()} are not in this corpus of "
        f"{self.num_blocks} blocks (and {NULL_ROW}, the null block)"
      )
    owners = np.searchsorted(self._first_rows, rows, side="right") - 1
    for number in np.unique(owners[rows >= 0]).tolist():
      indices = np.flatnonzero(owners == number)
      shard, first = self.shards[number], self._first_rows[number]
      yield shard, indices, shard.positions(rows[indices] - first)

  def gather(
    self, rows: Int[np.ndarray, "*s"], length: int
  ) -> Int[np.ndarray, "*s {length}"]:
    """Returns `[CLS] title [SEP] body [SEP]` of many blocks, padded with 0.

    Training reads these tokens, int32, at every step. The body of a block that
    is too long is truncated; the last [SEP] stays. The length is at least 3.
    """
    rows = np.asarray(rows)
    tokens = np.zeros((rows.size, length), np.int32)
    tokens[:, 0] = self._cls_id
    tokens[:, 1:NUM_SPECIAL_TOKENS] = self._sep_id
    for shard, indices, positions in self.by_shard(rows.reshape(-1)):
      tokens[indices] = shard.gather(
        positions, length, cls_id=self._cls_id, sep_id=self._sep_id
      )
    return tokens.reshape(*rows.shape, length)

  def random_sentences(
    self,
    rows: Int[np.ndarray, " n"],
    length: int,
    rng: np.random.Generator,
  ) -> Int[np.ndarray, "n {length}"]:
    """Returns `[CLS] sentence [SEP]` of each block, padded with 0."""
    queries = np.zeros((len(rows), length), np.int32)
    for query, row in zip(queries, rows.tolist(), strict=True):
      block = self.block(row)
      sentences = block.sentences
      start, limit = rng.choice(sentences) if len(sentences) else (0, 0)
      words = block.body_token_ids[start:limit][: length - 2]
      query[: len(words) + 2] = [self._cls_id, *words, self._sep_id]
    return queries

  def bodies_utf8(self, rows: Int[np.ndarray, " n"]) -> list[bytes]:
    """Returns the original texts of many bodies, in UTF-8."""
    bodies = [b""] * rows.size
    for shard, indices, positions in self.by_shard(rows):
      for i, position in zip(indices.tolist(), positions.tolist(), strict=True):
        bodies[i] = shard.item("bodies", position).tobytes()
    return bodies

  def body_tokens_flat(
    self, rows: Int[np.ndarray, " n"]
  ) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, " n+1"]]:
    """Returns the concatenated body tokens of blocks, int32, and offsets."""
    empty = np.zeros(0, np.int32)
    bodies = [
      empty if row == NULL_ROW else self.block(row).body_token_ids
      for row in rows.tolist()
    ]
    return np.concatenate([empty, *bodies]), np.cumsum([0, *map(len, bodies)])

  # --- Edges between blocks ---------------------------------------------

  @functools.cached_property
  def graph(self) -> Graph:
    """The edges between blocks."""
    return Graph(self)

  def edges(self, rows: Int[np.ndarray, " n"]) -> Edges:
    """Returns the links of blocks: see `Graph.edges`."""
    return self.graph.edges(rows)

  def siblings(self, rows: Int[np.ndarray, " n"]) -> Edges:
    """Returns the other blocks of the documents of blocks, in order."""
    return self.graph.siblings(rows)


def _kind(path: str) -> str:
  """Returns the part of a path that all shards' files of an array share."""
  folder, _, name = path.rpartition("/")
  return folder if folder == manifests.REMOVED else name


def require_block_length(block_length: int, *corpora: Corpus) -> None:
  """Raises a `CorpusError` if a length truncates blocks, or is never needed."""
  longest = max(corpora, key=lambda corpus: corpus.block_length)
  if block_length != (length := longest.block_length):
    effect = "cut its blocks" if block_length < length else "only add padding"
    raise CorpusError(
      f"block_length={block_length}, and {longest.source} was built with "
      f"--block_length={length}: {block_length} would {effect}; pass "
      f"--gin.BLOCK_LENGTH={length} (show_task --block_length={length}), or "
      "build the corpus again"
    )
