"""A corpus on disk, memory-mapped and read only."""

import functools
import weakref
from typing import TYPE_CHECKING

from etils import epath

from realm_jax.corpus import versions
from realm_jax.corpus.block_reader import NULL_ROW as NULL_ROW
from realm_jax.corpus.block_reader import BlockReader
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.manifest import Manifest, files_of
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.shards.shard import Shard
from realm_jax.corpus.staging import CorpusFiles
from realm_jax.files.checksum import sha256_of

if TYPE_CHECKING:
  from realm_jax.text.wordpieces import WordpieceVocabulary


class Corpus(BlockReader):
  """All blocks of one corpus version; open one with `Corpus.open`.

  Rows index blocks in one version and are what arrays hold; ids are stable
  across versions and outlive a run.

  `name` is part of the block ids, so that those of two corpora differ.
  `source` is the directory that was opened, maybe on an object store.
  """

  def __init__(self, source: epath.Path, manifest: Manifest):
    self.source = source
    # Open versions by fingerprint, shared by all that were opened from one.
    self._opened = weakref.WeakValueDictionary[str, Corpus]()
    self.fingerprint = manifest["fingerprint"]
    self.version = manifest["corpus_version"]
    self.name = manifest["name"]
    self.block_length = manifest["block_length"]
    self.vocab_sha256 = manifest["vocabulary"]["sha256"]
    self.vocab_size = manifest["vocabulary"]["size"]
    self.summary = manifest["summary"]
    self.drop_titles = tuple(manifest["drop_titles"])
    self._records = files_of(manifest)
    self._files = CorpusFiles(source, manifest)
    shards, sizes = [], []
    for record in manifest["shards"]:
      removed = record.get("removed")
      shards.append(
        Shard(
          record["name"],
          self._files.local,
          removed=removed["path"] if removed else None,
          span_kinds=record["span_kinds"],
        )
      )
      num_removed = removed["num_blocks"] if removed else 0
      sizes.append(record["num_blocks"] - num_removed)
    ids = manifest["vocabulary"]["special_ids"]
    super().__init__(shards, sizes, cls_id=ids["cls"], sep_id=ids["sep"])

  @classmethod
  def open(
    cls,
    directory: epath.PathLike,
    *,
    version: int | None = None,
    fingerprint: str | None = None,
  ) -> "Corpus":
    """Opens the newest version, or the one that is named; reads no array.

    Arrays on an object store are copied to the cache of the host when they are
    first used.

    Raises:
      CorpusError: There is no corpus, it has no such version or another
        format, or a file is missing or has another size.
    """
    source = epath.Path(directory)
    manifest = versions.read(source, version=version, fingerprint=fingerprint)
    corpus = cls(source, manifest)
    corpus._files.require_sizes()
    corpus._opened[corpus.fingerprint] = corpus
    return corpus

  def newest(self) -> "Corpus":
    """Returns the newest version of this corpus; raises as `at` does."""
    manifest = versions.read(self.source)
    return self.at(manifest["corpus_version"], manifest["fingerprint"])

  def at(self, version: int, fingerprint: str) -> "Corpus":
    """Returns a version, which is opened once while it is in use.

    Raises:
      CorpusError: It is missing, or has another vocabulary or block length.
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
      versions.read(self.source, version=version, fingerprint=fingerprint)
    except CorpusError:
      return False
    return True

  def verify(self) -> None:
    """Reads every file and compares checksums; raises `CorpusError`."""
    for name, record in self._records.items():
      if sha256_of(self.source / name) != record["sha256"]:
        raise CorpusError(
          f"{self.source / name} does not have the checksum of the "
          "manifest; copy or build the corpus again"
        )

  def require_vocabulary_of(self, other: "Corpus") -> None:
    """Raises `CorpusError` if another corpus has another vocabulary."""
    if self.vocab_sha256 != other.vocab_sha256:
      raise CorpusError(
        f"{self.source} has another vocabulary than {other.source}; "
        f"build it again with --vocab={other.source}/vocab.txt"
      )

  @functools.cached_property
  def vocabulary(self) -> "WordpieceVocabulary":
    """The vocabulary that the corpus was built with."""
    # Imported late: it imports TensorFlow, which takes six seconds.
    from realm_jax.text.wordpieces import WordpieceVocabulary

    path = self.source / shard_format.VOCABULARY_NAME
    vocabulary = WordpieceVocabulary(path)
    if vocabulary.sha256 != self.vocab_sha256:
      raise CorpusError(
        f"{path} is not the vocabulary that the corpus was built with; put "
        "that one back, or build the corpus again"
      )
    return vocabulary


def require_block_length(block_length: int, *corpora: Corpus) -> None:
  """Raises `CorpusError` for a length that cuts blocks, or that none needs."""
  longest = max(corpora, key=lambda corpus: corpus.block_length)
  if block_length != (length := longest.block_length):
    what = (
      "would cut its blocks"
      if block_length < length
      else "would only add padding"
    )
    raise CorpusError(
      f"block_length={block_length}, and {longest.source} was built with "
      f"--block_length={length}: {block_length} {what}; pass "
      f"--gin.BLOCK_LENGTH={length}, or build the corpus again"
    )
