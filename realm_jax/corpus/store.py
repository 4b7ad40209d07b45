"""A corpus on disk, memory-mapped and read only.

Rows, 0…N−1, index blocks in one version of a corpus and are what arrays hold;
ids are stable across versions and are what outlives a run. The null block is
row −1: it is stored nowhere and reads as `[CLS] [SEP] [SEP]`.
"""

import functools
import hashlib
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath
from jaxtyping import Int

from realm_jax.corpus import staging, versions
from realm_jax.corpus.build.splitting import NUM_SPECIAL_TOKENS
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.shards.shard import Shard, ragged_indices

if TYPE_CHECKING:
  from realm_jax.text.wordpieces import WordpieceVocabulary

NULL_ROW = -1


class Corpus:
  """All blocks of one corpus version; open one with `Corpus.open`.

  Attributes:
    source: the directory that was opened, local or not.
    directory: where its files lie locally.
    shards: in which blocks follow each other in the order of their rows.
  """

  def __init__(
    self,
    directory: epath.Path,
    manifest: dict[str, Any],
    *,
    source: epath.Path,
  ):
    self.source = source
    self.directory = directory
    # Those in use, by fingerprint, shared by all that were opened of one.
    self._opened: weakref.WeakValueDictionary[str, Corpus]
    self._opened = weakref.WeakValueDictionary()
    self.fingerprint: str = manifest["fingerprint"]
    self.version: int = manifest["corpus_version"]
    self.block_length: int = manifest["block_length"]
    self.num_blocks: int = manifest["num_blocks"]
    self.vocab_sha256: str = manifest["vocabulary"]["sha256"]
    self.vocab_size: int = manifest["vocabulary"]["size"]
    self.summary: dict[str, Any] = manifest["summary"]
    self._special_ids: dict[str, int] = manifest["vocabulary"]["special_ids"]
    self.shards: list[Shard] = []
    sizes = []
    for shard in manifest["shards"]:
      removed = shard.get("removed")
      path = removed and directory / removed["path"]
      self.shards.append(Shard(directory / shard["name"], removed=path))
      gone = removed["num_blocks"] if removed else 0
      sizes.append(shard["num_blocks"] - gone)
    self._first_rows = np.concatenate([[0], np.cumsum(sizes)])
    self._files = versions.files_of(manifest)

  @classmethod
  def open(
    cls,
    directory: epath.PathLike,
    *,
    version: int | None = None,
    fingerprint: str | None = None,
  ) -> "Corpus":
    """Opens a corpus directory; reads its manifest and no array.

    Args:
      directory: what `build_corpus` wrote.
      version: which version; None takes the newest, …
      fingerprint: … or the one that has this fingerprint.

    Raises:
      CorpusError: there is no corpus here, or not this version of it, or it is
        of another format, or a file is missing or cut short.
    """
    source = epath.Path(directory)
    manifest = versions.read(source, version=version, fingerprint=fingerprint)
    local = staging.local_copy(source, manifest)
    corpus = cls(local, manifest, source=source)
    corpus._check_sizes()
    corpus._opened[corpus.fingerprint] = corpus
    return corpus

  def newest(self) -> "Corpus":
    """The newest version of this corpus; itself, if it is.

    Raises:
      CorpusError: the directory holds no corpus any more, or one of another
        vocabulary or block length.
    """
    manifest = versions.read(self.source)
    return self.at(manifest["corpus_version"], manifest["fingerprint"])

  def at(self, version: int, fingerprint: str) -> "Corpus":
    """Another version of this corpus; opened once while it is in use.

    Raises:
      CorpusError: it is not there, or has another vocabulary or block length.
    """
    known = self._opened.get(fingerprint)
    if known is not None and known.version == version:
      return known
    other = Corpus.open(self.source, version=version, fingerprint=fingerprint)
    ours = self.vocab_sha256, self.block_length
    if (other.vocab_sha256, other.block_length) != ours:
      raise CorpusError(
        f"{self.source} was built anew, with another vocabulary or block "
        f"length than the corpus in use (fingerprint {self.fingerprint[:12]}); "
        "an update keeps both"
      )
    other._opened = self._opened
    self._opened[fingerprint] = other
    return other

  def has_version(self, version: int, fingerprint: str) -> bool:
    """Whether the directory still has this version."""
    return versions.has(self.source, version, fingerprint)

  def _check_sizes(self) -> None:
    for name, record in self._files.items():
      path = self.directory / name
      if not path.is_file():
        raise CorpusError(f"{path} is missing; copy or build the corpus again")
      if (size := path.stat().length) != record["bytes"]:
        raise CorpusError(
          f"{path} has {size} bytes and its manifest says {record['bytes']}; "
          "copy or build the corpus again"
        )

  def verify(self) -> None:
    """Reads every file and compares checksums; raises `CorpusError`."""
    for name, record in self._files.items():
      digest = hashlib.sha256()
      with (self.directory / name).open("rb") as file:
        while chunk := file.read(1 << 20):
          digest.update(chunk)
      if digest.hexdigest() != record["sha256"]:
        raise CorpusError(
          f"{self.directory / name} does not have the checksum of the "
          "manifest; copy or build the corpus again"
        )

  def require_whole_blocks(self, block_length: int) -> None:
    """Raises `CorpusError` where so few wordpieces would cut a block."""
    if block_length < self.block_length:
      raise CorpusError(
        f"block_length={block_length} would cut blocks of {self.directory}, "
        f"which have up to {self.block_length} wordpieces; bind "
        f"BLOCK_LENGTH={self.block_length}, or build the corpus with "
        f"--block_length={block_length}"
      )

  @functools.cached_property
  def vocabulary(self) -> "WordpieceVocabulary":
    """The vocabulary the corpus was built with."""
    # Here, because it takes TensorFlow six seconds to import.
    from realm_jax.text.wordpieces import WordpieceVocabulary

    vocabulary = WordpieceVocabulary(
      self.directory / shard_format.VOCABULARY_NAME
    )
    if vocabulary.sha256 != self.vocab_sha256:
      raise CorpusError(
        f"{self.directory / shard_format.VOCABULARY_NAME} is not the "
        "vocabulary that the corpus was built with; put that one back, or "
        "build the corpus again"
      )
    return vocabulary

  # --- Identity ---------------------------------------------------------

  @functools.cached_property
  def block_ids(self) -> Int[np.ndarray, " N"]:
    """The stable id of each block: see `block_builder.block_id`."""
    return self._by_block("block_ids")

  @functools.cached_property
  def lengths(self) -> Int[np.ndarray, " N"]:
    """Tokens of `[CLS] title [SEP] body [SEP]`, int32."""
    lengths = np.concatenate([s.left_of(s.lengths) for s in self.shards])
    return (lengths + NUM_SPECIAL_TOKENS).astype(np.int32)

  def _by_block(self, name: str) -> np.ndarray:
    arrays = [shard.left_of(shard.array(name)) for shard in self.shards]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

  @functools.cached_property
  def _id_order(self) -> Int[np.ndarray, " N"]:
    return np.argsort(self.block_ids, kind="stable").astype(np.int32)

  def rows_of(self, ids: Int[np.ndarray, "*s"]) -> Int[np.ndarray, "*s"]:
    """The rows of block ids, int32; −1 where the corpus has no such block."""
    ids = np.asarray(ids, np.int64)
    place = np.searchsorted(self.block_ids, ids, sorter=self._id_order)
    rows = self._id_order[np.minimum(place, self.num_blocks - 1)]
    return np.where(self.block_ids[rows] == ids, rows, np.int32(NULL_ROW))

  def locate(self, row: int) -> tuple[int, int]:
    """The number of a block's shard in `shards`, and the block's place there.

    Raises:
      IndexError: there is no such row.
    """
    if not 0 <= row < self.num_blocks:
      raise IndexError(
        f"row {row} is not in this corpus of {self.num_blocks} blocks"
      )
    index = int(np.searchsorted(self._first_rows, row, side="right")) - 1
    return index, int(self.shards[index].places(row - self._first_rows[index]))

  def _locate(self, row: int) -> tuple[Shard, int]:
    number, place = self.locate(row)
    return self.shards[number], place

  def document_id(self, row: int) -> str:
    shard, row = self._locate(row)
    return shard.text("document_ids", shard.document(row))

  def ordinal(self, row: int) -> int:
    """The block's place among the blocks of its document, from 0."""
    shard, row = self._locate(row)
    return shard.ordinal(row)

  def block_name(self, row: int) -> str:
    """`document id:ordinal`, the block's id for people."""
    return f"{self.document_id(row)}:{self.ordinal(row)}"

  # --- One block --------------------------------------------------------

  def title(self, row: int) -> str:
    shard, row = self._locate(row)
    return shard.text("titles", shard.document(row))

  def url(self, row: int) -> str:
    """Where the document was found; empty where the input did not say."""
    shard, row = self._locate(row)
    return shard.text("urls", shard.document(row))

  def body(self, row: int) -> str:
    """The block's text as it was written."""
    shard, row = self._locate(row)
    return shard.text("bodies", row)

  def token_ids(self, row: int) -> Int[np.ndarray, " l"]:
    """Pieces of title and body, int32, without specials."""
    shard, row = self._locate(row)
    return shard.item("token_ids", row).astype(np.int32)

  def title_length(self, row: int) -> int:
    """How many of `token_ids` are the title's."""
    shard, row = self._locate(row)
    return int(shard.array("title_lengths")[row])

  def body_token_ids(self, row: int) -> Int[np.ndarray, " b"]:
    return self.token_ids(row)[self.title_length(row) :]

  def body_byte_ranges(self, row: int) -> Int[np.ndarray, "b 2"]:
    """Each body token's (start, limit) in the UTF-8 bytes of `body(row)`."""
    shard, row = self._locate(row)
    return shard.item("byte_ranges", row)

  def sentences(self, row: int) -> Int[np.ndarray, "s 2"]:
    """Token ranges of the body that are its sentences."""
    shard, row = self._locate(row)
    return shard.item("sentences", row)

  def salient_spans(self, row: int) -> Int[np.ndarray, "p 2"]:
    """Token ranges of the body, each inside one sentence."""
    shard, row = self._locate(row)
    return shard.item("salient_spans", row)

  def answer_text(self, row: int, start: int, limit: int) -> str:
    """Body tokens `[start, limit)` as they were written."""
    ranges = self.body_byte_ranges(row)
    if not 0 <= start < limit <= len(ranges):
      raise IndexError(
        f"tokens [{start}, {limit}) are not in the {len(ranges)} of row {row}"
      )
    shard, local = self._locate(row)
    body = shard.item("bodies", local)
    text = body[ranges[start, 0] : ranges[limit - 1, 1]].tobytes()
    return text.decode("utf-8")

  # --- Many blocks ------------------------------------------------------

  def _by_shard(
    self, rows: Int[np.ndarray, " n"]
  ) -> Iterator[tuple[Shard, Int[np.ndarray, " m"], Int[np.ndarray, " m"]]]:
    """Yields shard, positions in `rows` that are its, and places in it."""
    if rows.size and not NULL_ROW <= rows.min() <= rows.max() < self.num_blocks:
      raise IndexError(
        f"rows {rows.min()}…{rows.max()} are not in this corpus of "
        f"{self.num_blocks} blocks (and {NULL_ROW}, the null block)"
      )
    owners = np.searchsorted(self._first_rows, rows, side="right") - 1
    for index in np.unique(owners[rows >= 0]).tolist():
      positions = np.flatnonzero(owners == index)
      shard, first = self.shards[index], self._first_rows[index]
      yield shard, positions, shard.places(rows[positions] - first)

  def gather(
    self, rows: Int[np.ndarray, "*s"], length: int
  ) -> Int[np.ndarray, "*s {length}"]:
    """`[CLS] title [SEP] body [SEP]` of many blocks, int32, padded with 0.

    This is what training reads at every step. Row −1 is the null block. A
    block that is too long loses the end of its body, and keeps its last [SEP].
    """
    if length < NUM_SPECIAL_TOKENS:
      raise ValueError(f"length={length} has no room for [CLS] [SEP] [SEP]")
    rows = np.asarray(rows)
    flat_rows = rows.reshape(-1)
    cls_id, sep_id = self._special_ids["cls"], self._special_ids["sep"]
    tokens = np.zeros((flat_rows.size, length), np.int32)
    tokens[:, :NUM_SPECIAL_TOKENS] = cls_id, sep_id, sep_id
    for shard, at, places in self._by_shard(flat_rows):
      tokens[at] = shard.gather(places, length, cls_id=cls_id, sep_id=sep_id)
    return tokens.reshape(*rows.shape, length)

  def bodies_utf8(self, rows: Int[np.ndarray, " n"]) -> list[bytes]:
    """The texts of many blocks' bodies, as they were written, in UTF-8."""
    rows = np.asarray(rows)
    bodies = [b""] * rows.size
    for shard, positions, places in self._by_shard(rows):
      for at, place in zip(positions.tolist(), places.tolist(), strict=True):
        bodies[at] = shard.item("bodies", place).tobytes()
    return bodies

  def body_tokens_flat(
    self, rows: Int[np.ndarray, " n"]
  ) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, " n+1"]]:
    """Body tokens of many blocks end to end, and where each begins."""
    rows = np.asarray(rows)
    lengths = np.zeros(rows.size, np.int64)
    located = []
    for shard, at, places in self._by_shard(rows):
      starts, lengths[at] = shard.body_locations(places)
      located.append((shard, at, starts))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.zeros(offsets[-1], np.int32)
    for shard, at, starts in located:
      source = ragged_indices(starts, lengths[at])
      target = ragged_indices(offsets[at], lengths[at])
      tokens[target] = shard.array("token_ids")[source]
    return tokens, offsets
