"""Updates a corpus: adds, replaces and removes documents by their ids.

Also adds views to the newest version, by replacing its manifest.

The new version has the same blocks as a build of the changed text, in another
order. Blocks of unchanged documents keep their ids, text and files.

New files are written to a staging directory and moved to names that no version
uses yet. Then the manifest of the previous version is copied to `versions`, and
`corpus.json` is replaced. A process that is killed before that leaves the
previous version intact, and unreferenced files, which the next update removes.

On a local disk a second concurrent update is refused. Object stores have no
locks: the slower of two updates usually notices the other one, but an update
can be lost between this check and the write.
"""

import contextlib
import functools
import itertools
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from realm_jax.console import Progress
from realm_jax.corpus import CorpusError
from realm_jax.corpus import manifest as manifests
from realm_jax.corpus.block_builder import BlockBuilder
from realm_jax.corpus.build import tagger_of
from realm_jax.corpus.documents import Document, RowReader, block_id
from realm_jax.corpus.linker import Linker, find_mentions
from realm_jax.corpus.manifest import Manifest, ShardRecord, files_of
from realm_jax.corpus.sources import DocumentSource, Input, named
from realm_jax.corpus.store import Corpus
from realm_jax.corpus.summary import UpdateSummary
from realm_jax.corpus.views import (
  LEARNED_BYTES,
  TEXTS,
  parse_views,
  write_models,
  write_views,
)
from realm_jax.corpus.workers import map_in_processes
from realm_jax.corpus.writing import write_removed, write_shards
from realm_jax.storage.access import require_readable, require_writable
from realm_jax.storage.atomic import check_target, staging_directory
from realm_jax.storage.json_files import write_json
from realm_jax.storage.local_disk import explain_full_disk, sync, sync_tree
from realm_jax.storage.paths import is_remote, sizes_below, upload_directory
from realm_jax.text.salient_spans import Tagger

# Approximate number of existing blocks in which phrases are counted.
_SAMPLE = 10_000
# Files that belong to versions.
_OURS = re.compile(
  rf"(shard-[^/]+|{manifests.REMOVED}|{manifests.VIEWS})/[^/]+"
)
# Key of a document whose blocks have all been removed.
_GONE = -1


def update_corpus(
  inputs: Sequence[Input],
  output_dir: epath.PathLike,
  *,
  tagger: Tagger | str | None = "default",
  drop_titles: Sequence[str] | None = None,
  link_table: str | None = None,
  unescape_html: bool = True,
  skip_bad_lines: bool = False,
) -> UpdateSummary:
  """Makes a new version of a corpus from JSON Lines of changes.

  A line with an existing id replaces that document, a line with a new id adds a
  document, and `{"id": …, "remove": true}` removes one. Processes that read the
  previous version can continue: it stays, and takes only the space of the
  removed documents. Once its manifest in `versions` is deleted, the next update
  of a local corpus removes the files that only this version used.

  Vocabulary, block length and language stay. `build_corpus` describes the other
  arguments; use the same tagger and HTML option as for the build. Recurring
  phrases are counted in the previous version.

  Args:
    drop_titles: Texts in titles of documents that are left out, and removed if
      they are in the corpus. None takes the texts of the build.
    link_table: File of further links for new and replaced documents; unchanged
      documents keep their links.
    skip_bad_lines: Whether lines that are malformed, repeat an id or remove
      an unknown document are counted instead of raising an error.

  Returns:
    Counts of changes. Without any, there is no new version.

  Raises:
    InputError: The input cannot be read, or removes an unknown document.
    CorpusError: There is no corpus, an argument is wrong, or no block would be
      left.
    TargetError, DiskFullError, StoreAccessError: The directory cannot be
      written, or a bucket not read.

  Example:
    >>> from realm_jax.corpus.build import build_corpus
    >>> text = {"id": "a", "title": "Ada", "text": "Ada was born in Tarn."}
    >>> _ = build_corpus([text], "news", vocab="corpus/vocab.txt")
    >>> text["text"] = "Ada was born in Pola."
    >>> update_corpus([text], "news").version
    2
  """
  require_readable(*named(inputs), link_table)
  directory = epath.Path(output_dir)
  with _changing(directory) as (staging, before, corpus):
    summary = UpdateSummary(version=corpus.version)
    version = corpus.version + 1
    prefix = f"v{version:08d}"
    if is_remote(directory):
      # A concurrent update must not use the same names.
      prefix += f"-{secrets.token_hex(4)}"
    reader = RowReader(
      fields=corpus.fields,
      drop_titles=corpus.drop_titles if drop_titles is None else drop_titles,
      unescape_html=unescape_html,
      reads_links=corpus.link_source != "none",
      of_update=True,
    )
    source = DocumentSource(
      inputs, reader, skip_bad_lines=skip_bad_lines, link_table=link_table
    )
    summary.new = source.summary

    rows = range(0, corpus.num_blocks, 1 + corpus.num_blocks // _SAMPLE)
    sample = (corpus.block(row).text for row in rows)
    known, mentions = source.title_keys, None
    if source.has_links or corpus.link_source == "mentions":
      known = np.union1d(known, corpus.graph.titles[0])
    if corpus.link_source == "mentions":
      new = (document.title for document in source.documents())
      titles = itertools.chain(*(s.titles() for s in corpus.shards), new)
      texts = (corpus.block(row).text for row in rows)
      mentions = find_mentions(titles, texts)
    builder = BlockBuilder(
      vocabulary=corpus.vocabulary,
      corpus_name=corpus.name,
      block_length=corpus.block_length,
      language=corpus.language,
      tagger=tagger_of(tagger, corpus.language, summary.new, sample),
      linker=Linker(known=known, mentions=mentions),
    )
    existing = _ExistingDocuments(corpus)
    views: Any = {name: corpus.view(name).vocabulary for name in corpus.views}
    new_shards = write_shards(
      staging,
      builder.blocks(_changed(source, existing, summary), summary.new),
      prefix=f"shard-{prefix}",
    )
    new_shards = [write_views(views, staging, staging, s) for s in new_shards]
    old_shards = existing.without_removed(staging, prefix, summary)
    if not summary.changes_something:
      return summary
    summary.version = version
    changes = {
      "corpus_version": version,
      "shards": [*old_shards, *new_shards],
      "summary": {**vars(summary), "new": vars(summary.new)},
      "drop_titles": reader.dropped_titles,
    }
    manifest = manifests.completed(before | changes)
    if not manifest["num_blocks"]:
      raise CorpusError(
        f"{directory} would have no block left; a corpus needs at least one"
      )
    _publish(staging, directory, before, manifest)
  return summary


def add_views(
  output_dir: epath.PathLike, view: Sequence[str], *, workers: int = 1
) -> None:
  """Adds views to the newest version of a corpus, without a new version.

  `build_corpus` describes the arguments; models are learned from the blocks.
  Updates keep the views. Raises the errors of `update_corpus`, and a
  `VocabularyError` if a model cannot be used.
  """
  if workers < 1:
    raise CorpusError(f"workers={workers}; give 1 or more")
  directory = epath.Path(output_dir)
  with _changing(directory) as (staging, before, corpus):
    makers = parse_views(view, known=corpus.views)
    first = before["shards"][0]["name"]
    paths = [corpus.local(f"{first}/{name}.npy") for name in TEXTS]
    stride = sum(len(s.array("bodies")) for s in corpus.shards) // LEARNED_BYTES
    rows = range(0, corpus.num_blocks, stride + 1)
    views = {
      name: make(t for b in map(corpus.block, rows) for t in (b.title, b.text))
      for name, make in makers.items()
    }
    write = functools.partial(write_views, views, paths[0].parents[1], staging)
    written = map_in_processes(write, before["shards"], workers)
    shards: list[ShardRecord] = []
    progress = Progress("shards", total=len(before["shards"]))
    with contextlib.closing(written), progress:
      for record in written:
        shards.append(record)
        progress.advance()
    manifest = before | {"shards": shards}
    manifest["views"] = {**corpus.views, **write_models(staging, views)}
    _publish(staging, directory, before, manifest)


@contextlib.contextmanager
def _changing(
  directory: epath.Path,
) -> Iterator[tuple[Path, Manifest, Corpus]]:
  """Yields a directory for new files, the newest manifest and its corpus.

  On a local disk, other changes are locked out until the block ends.
  """
  require_writable(directory)
  manifests.read(directory)  # Raises an error if there is none.
  check_target(directory)
  with (
    explain_full_disk(directory, advice="free some space"),
    staging_directory(directory) as staging,
  ):
    if not is_remote(directory):
      # Files of a killed update, and of deleted versions.
      named = {
        file.path
        for version in (*manifests.earlier_versions(directory), None)
        for file in files_of(manifests.read(directory, version=version))
      }
      for name in {*sizes_below(directory)} - named:
        path = Path(directory, name)
        if _OURS.fullmatch(name):
          path.unlink()
          if not any(path.parent.iterdir()):
            path.parent.rmdir()
    yield staging, manifests.read(directory), Corpus.open(directory)


class _ExistingDocuments:
  """The documents of one version, by the ids of their first blocks.

  A document exists if any of its blocks is left. Blocks and documents are
  numbered consecutively over all shards.
  """

  def __init__(self, corpus: Corpus):
    self.corpus = corpus
    sizes = [len(shard.lengths) for shard in corpus.shards]
    self._firsts = np.append(0, np.cumsum(sizes))
    self._is_removed = np.zeros(self._firsts[-1], bool)
    keys, hashes, ranges = [], [], []
    for shard, first in zip(corpus.shards, self._firsts, strict=False):
      self._is_removed[first + shard.removed] = True
      starts = shard.array("document_starts")
      keys.append(shard.array("block_ids")[starts[:-1]])
      hashes.append(shard.array("document_hashes"))
      ranges.append(first + np.stack([starts[:-1], starts[1:]], axis=1))
    # Hashes of the documents' inputs.
    self.hashes, self._ranges = np.concatenate(hashes), np.concatenate(ranges)
    left = np.append(0, np.cumsum(~self._is_removed))[self._ranges]
    is_left = left[:, 1] > left[:, 0]
    self._keys = np.where(is_left, np.concatenate(keys), _GONE)
    self._order = np.argsort(self._keys, kind="stable")

  def find(self, document_id: str) -> int | None:
    """Returns the number of a document."""
    key = block_id(self.corpus.name, document_id, 0)
    index = int(np.searchsorted(self._keys, key, sorter=self._order))
    number = int(self._order[index]) if index < len(self._order) else -1
    return number if number >= 0 and self._keys[number] == key else None

  def remove(self, number: int) -> None:
    """Removes a document's blocks."""
    self._is_removed[slice(*self._ranges[number])] = True

  def without_removed(
    self, staging: Path, prefix: str, summary: UpdateSummary
  ) -> list[ShardRecord]:
    """Writes lists of removed blocks; returns the records of the shards."""
    records: list[ShardRecord] = []
    parts = np.split(self._is_removed, self._firsts[1:-1])
    for shard, is_removed in zip(self.corpus.shards, parts, strict=True):
      num_removed = int(is_removed.sum()) - len(shard.removed)
      summary.blocks_removed += num_removed
      if is_removed.all():
        continue
      record = shard.record.copy()
      if num_removed:
        record["removed"] = write_removed(
          staging,
          record["name"],
          is_removed,
          prefix=prefix,
          array=shard.array,
        )
      records.append(record)
    return records


def _changed(
  source: DocumentSource, existing: _ExistingDocuments, summary: UpdateSummary
) -> Iterator[Document]:
  """Yields new and changed documents; removes the ones they replace."""
  corpus = existing.corpus
  for change in source.documents():
    number = existing.find(change.id)
    if change.is_removal and number is None:
      source.refuse(
        f"{change.place}: nothing to remove, no document has the id "
        f"{change.id!r} in version {corpus.version} of {corpus.source}",
        "unknown ids to remove",
      )
    elif change.is_removal or source.reader.dropped(change):
      if number is not None:
        summary.removed += 1
        existing.remove(number)
    elif number is None:
      summary.added += 1
      yield change
    elif existing.hashes[number] == change.hash:
      summary.unchanged += 1
    else:
      summary.replaced += 1
      existing.remove(number)
      yield change


# --- Files --------------------------------------------------------------


def _publish(
  staging: Path, directory: epath.Path, before: Manifest, manifest: Manifest
) -> None:
  """Adds new files, and replaces the manifest; keeps the previous version's.

  Raises:
    CorpusError: Another process has changed the corpus since `before` was read.
  """
  _move_files(staging, directory)
  if manifests.read(directory) != before:
    # Possible on an object store, which has no locks.
    raise CorpusError(
      f"another process has updated {directory} meanwhile; update it again"
    )
  if manifest["corpus_version"] != before["corpus_version"]:
    kept = directory / manifests.manifest_path(before["corpus_version"])
    write_json(kept, before)
  write_json(directory / manifests.MANIFEST_NAME, manifest)


def _move_files(staging: Path, target: epath.Path) -> None:
  """Moves new files to the paths that the manifest will record."""
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
