"""Updates a corpus: documents are added, replaced and removed by their ids.

The new version has the blocks that a build of the changed text would have, in
another order. Blocks of unchanged documents keep their ids, text and files.

New files are written to a staging directory and moved to names that no version
uses yet. Then the manifest of the version before is kept, and `corpus.json` is
replaced. A process that is killed before that leaves the version before, and
files that no manifest names, which the next update removes.

Locally a second concurrent update is refused. Object stores have no locks: the
slower of two updates usually finds that the other was faster, but one of them
can be lost between that check and its own write.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import logging
from etils import epath

from realm_jax.corpus import CorpusError
from realm_jax.corpus import manifest as manifests
from realm_jax.corpus.block_builder import BlockBuilder, block_id, chunks
from realm_jax.corpus.documents import Document, Removal, document_hash
from realm_jax.corpus.manifest import Manifest, ShardRecord, paths_of
from realm_jax.corpus.shard import (
  SHARD_BYTES,
  Blocks,
  is_left,
  write_removed,
  write_shards,
)
from realm_jax.corpus.sources import DocumentSource
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.summary import UpdateSummary
from realm_jax.storage.access import require_readable, require_writable
from realm_jax.storage.atomic import check_target, staging_directory
from realm_jax.storage.local_disk import explain_full_disk, sync, sync_tree
from realm_jax.storage.paths import is_remote, upload_directory
from realm_jax.text.salient_spans import Tagger, tag
from realm_jax.text.wordpieces import WordpieceVocabulary


def update_corpus(
  inputs: Sequence[str],
  output_dir: epath.PathLike,
  *,
  vocab: str | None = None,
  block_length: int | None = None,
  tagger: Tagger | None = tag,
  drop_titles: Sequence[str] | None = None,
  unescape_html: bool = True,
  skip_bad_lines: bool = False,
  shard_bytes: int = SHARD_BYTES,
  keep_versions: int | None = None,
) -> UpdateSummary:
  """Makes a new version of a corpus from JSON Lines of changes.

  A line with an id that the corpus has replaces that document, one with a new
  id adds a document, and `{"id": …, "remove": true}` removes one. Readers of
  the version before continue to read it, as long as it is kept.

  Other arguments are those of `build_corpus`; give the tagger and the reading
  of HTML that the build had.

  Args:
    vocab: Vocabulary file, which must be that of the corpus; None takes it.
    block_length: Block length, which must be that of the corpus; None takes it.
    drop_titles: Texts in titles of documents that are left out, and removed if
      the corpus has them. None takes those of the build.
    skip_bad_lines: Whether lines that are malformed, repeat an id or remove
      an unknown document are counted instead of raising an error.
    shard_bytes: Number of bytes of text at which a shard of new blocks ends.
    keep_versions: Number of the newest versions to keep. None keeps all: a
      resumed run reads its data from the version that it began with, and an
      earlier version takes only the space of what was removed since. A reader
      of a version that is not kept can read only the files that it has mapped.

  Returns:
    Counts of what changed. If nothing did, there is no new version.

  Raises:
    InputError: The input cannot be read, or removes an unknown document.
    CorpusError: There is no corpus, an argument does not fit it, or no block
      would be left.
    TargetError, DiskFullError, StoreAccessError: The directory cannot be
      written, or a bucket not read.
  """
  if shard_bytes < 1:
    raise CorpusError(f"shard_bytes={shard_bytes}; give 1 or more")
  if keep_versions is not None and keep_versions < 1:
    raise CorpusError(
      f"keep_versions={keep_versions}; give 1, to keep the newest, or more"
    )
  require_readable(*inputs)
  require_writable(output_dir)
  directory = epath.Path(output_dir)
  manifests.read(directory)  # Raises an error if there is none.
  if not is_remote(directory):
    check_target(directory)
  with (
    explain_full_disk(directory, advice="free some space"),
    # Locally, this also keeps other updates out.
    staging_directory(directory) as staging,
  ):
    before = manifests.read(directory)
    corpus = Corpus.open(directory)
    _require_settings(corpus, vocab, block_length)
    version = corpus.version + 1
    prefix = f"v{version:08d}"
    if is_remote(directory):
      # A concurrent update must not use the same names.
      prefix += f"-{secrets.token_hex(4)}"
    else:
      _remove_unnamed(directory)
    source = DocumentSource(
      inputs,
      drop_titles=corpus.drop_titles if drop_titles is None else drop_titles,
      unescape_html=unescape_html,
      skip_bad_lines=skip_bad_lines,
      of_update=True,
    )
    existing = _ExistingDocuments(corpus)
    summary = UpdateSummary(version=corpus.version)
    new_shards = write_shards(
      staging,
      _new_blocks(source, existing, summary, tagger),
      vocab_size=corpus.vocab_size,
      update=prefix,
      shard_bytes=shard_bytes,
    )
    old_shards = existing.without_removed(before, staging, prefix, summary)
    if not summary.changes_something:
      return summary
    summary.version = version
    manifest = manifests.make_manifest(
      name=corpus.name,
      version=version,
      block_length=corpus.block_length,
      vocabulary=before["vocabulary"],
      shards=[*old_shards, *new_shards],
      summary=summary.to_json(),
      drop_titles=source.drop_titles,
    )
    if not manifest["num_blocks"]:
      raise CorpusError(
        f"{directory} would have no block left; a corpus needs at least one"
      )
    _publish(staging, directory, before, manifest)
    if keep_versions is not None:
      _prune(directory, newest=version, keep=keep_versions)
  return summary


def _require_settings(
  corpus: Corpus, vocab: str | None, block_length: int | None
) -> None:
  """Raises an error for arguments that would make other blocks."""
  if block_length not in (None, corpus.block_length):
    raise CorpusError(
      f"--block_length={block_length}, and {corpus.source} has "
      f"{corpus.block_length}, which an update keeps; leave it out, or build "
      "the corpus again"
    )
  if vocab is not None and (
    vocab.startswith("train:")
    or WordpieceVocabulary(vocab).sha256 != corpus.vocab_sha256
  ):
    raise CorpusError(
      f"--vocab={vocab} is not the vocabulary of {corpus.source}, which an "
      "update keeps; leave it out, or build the corpus again"
    )


class _ExistingDocuments:
  """The documents of one version, by the ids of their first blocks.

  A document is there if a block of it is left, be it another than the first.
  """

  def __init__(self, corpus: Corpus):
    self.corpus = corpus
    keys, hashes, shards, numbers = [], [], [], []
    self._removed = [np.zeros(len(s.lengths), bool) for s in corpus.shards]
    for index, shard in enumerate(corpus.shards):
      self._removed[index][shard.removed] = True
      starts = shard.array("document_starts")
      documents = np.flatnonzero(is_left(self._removed[index], starts))
      keys.append(shard.array("block_ids")[starts[documents]])
      hashes.append(shard.array("document_hashes")[documents])
      shards.append(np.full(len(documents), index))
      numbers.append(documents)
    self._keys = np.concatenate(keys)
    self._order = np.argsort(self._keys, kind="stable")
    self._hashes = np.concatenate(hashes)
    self._shards, self._numbers = (
      np.concatenate(shards),
      np.concatenate(numbers),
    )
    self._is_removed = np.zeros(len(self._keys), bool)

  def find(self, document_id: str) -> int | None:
    """Returns the number of a document among those of the version."""
    key = block_id(self.corpus.name, document_id, 0)
    index = int(np.searchsorted(self._keys, key, sorter=self._order))
    found = self._order[index] if index < len(self._order) else -1
    return int(found) if found >= 0 and self._keys[found] == key else None

  def is_same(self, number: int, document: Document) -> bool:
    """Returns whether a document was made from the same title, URL and text."""
    return int(self._hashes[number]) == document_hash(document)

  def remove(self, number: int) -> None:
    """Marks a document as removed."""
    self._is_removed[number] = True

  def without_removed(
    self,
    manifest: Manifest,
    staging: Path,
    prefix: str,
    summary: UpdateSummary,
  ) -> list[ShardRecord]:
    """Lists what was removed in files; returns the records of the shards."""
    records = []
    for index, record in enumerate(manifest["shards"]):
      documents = self._numbers[self._is_removed & (self._shards == index)]
      if not documents.size:
        records.append(record)
        continue
      shard, is_removed = self.corpus.shards[index], self._removed[index]
      for document in documents.tolist():
        is_removed[slice(*shard.document_range(document))] = True
      summary.blocks_removed += int(is_removed.sum()) - len(shard.removed)
      if is_removed.all():
        continue  # No block is left.
      removed = write_removed(
        staging,
        record["name"],
        is_removed,
        update=prefix,
        lengths=shard.lengths,
        document_starts=shard.array("document_starts"),
      )
      records.append({**record, "removed": removed})
    return records


def _new_blocks(
  source: DocumentSource,
  existing: _ExistingDocuments,
  summary: UpdateSummary,
  tagger: Tagger | None,
) -> Iterator[Blocks]:
  """Yields the blocks of new and changed documents."""
  corpus = existing.corpus
  builder = BlockBuilder(
    vocabulary=corpus.vocabulary,
    corpus_name=corpus.name,
    block_length=corpus.block_length,
    tagger=tagger,
  )
  for documents in chunks(_changed(source, existing, summary)):
    built = builder.build(documents)
    summary.new.add(built, len(documents))
    yield built.blocks


def _changed(
  source: DocumentSource, existing: _ExistingDocuments, summary: UpdateSummary
) -> Iterator[Document]:
  """Yields new and changed documents; removes what they replace."""
  corpus = existing.corpus
  for change in source.all_entries(summary.new):
    found = existing.find(change.id)
    if isinstance(change, Removal) and found is None:
      source.refuse(
        f"{change.place}: nothing to remove, no document has the id "
        f"{change.id!r} in version {corpus.version} of {corpus.source}",
        "unknown ids to remove",
        summary.new,
      )
    elif isinstance(change, Removal) or source.is_dropped(change, summary.new):
      if found is not None:
        summary.removed += 1
        existing.remove(found)
    elif found is None:
      summary.added += 1
      yield change
    elif existing.is_same(found, change):
      summary.unchanged += 1
    else:
      summary.replaced += 1
      existing.remove(found)
      yield change


# --- Files --------------------------------------------------------------


def _publish(
  staging: Path, directory: epath.Path, before: Manifest, manifest: Manifest
) -> None:
  """Adds the files of a version, and makes it the newest.

  Raises:
    CorpusError: Another process has done so since `before` was read.
  """
  _move_files(staging, directory)
  if manifests.read(directory) != before:
    # Possible on an object store, which has no locks.
    raise CorpusError(
      f"another process has updated {directory} meanwhile; update it again"
    )
  kept = directory / manifests.manifest_path(before["corpus_version"])
  manifests.write_manifest(kept, before)
  manifests.write_manifest(directory / manifests.MANIFEST_NAME, manifest)


def _move_files(staging: Path, target: epath.Path) -> None:
  """Puts new files where the manifest will name them."""
  if is_remote(target):
    upload_directory(staging, target)
    return
  sync_tree(staging)
  directory = Path(target)
  for path in sorted(staging.rglob("*")):
    moved = directory / path.relative_to(staging)
    if path.is_dir():
      moved.mkdir(exist_ok=True)
    else:
      os.replace(path, moved)
  for path in staging.iterdir():
    sync(directory / path.name)
  sync(directory)


def _prune(directory: epath.Path, *, newest: int, keep: int) -> None:
  """Removes versions, their manifests first, and what only they name."""
  found = manifests.every_version(directory)
  pruned = sorted(version for version in found if version <= newest - keep)
  unused: set[str] = set()
  for version in pruned:
    (directory / manifests.manifest_path(version)).unlink()
    unused |= paths_of(found.pop(version))
  if pruned:
    logging.info("Removed versions %s of %s", pruned, directory)
  _remove(directory, unused.difference(*map(paths_of, found.values())))


def _remove_unnamed(directory: epath.Path) -> None:
  """Removes what a killed update left."""
  found = {path.name for path in directory.glob("shard-*")}
  removed = directory / manifests.REMOVED
  found |= {f"{removed.name}/{path.name}" for path in removed.glob("*")}
  named = map(paths_of, manifests.every_version(directory).values())
  _remove(directory, found.difference(*named))


def _remove(directory: epath.Path, paths: set[str]) -> None:
  for name in sorted(paths):
    path = directory / name
    if path.is_dir():
      path.rmtree()
    else:
      path.unlink(missing_ok=True)
