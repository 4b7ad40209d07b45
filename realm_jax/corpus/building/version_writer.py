"""A new version of a corpus directory, which appears complete or not at all.

New files are written to a staging directory and moved to names that no
version uses yet. Then the manifest of the version before is kept, and
`corpus.json` is replaced. A process that is killed before that leaves the
version before, and files that no manifest names, which the next update
removes.

Locally a second concurrent update is refused. Object stores have no locks:
the slower of two updates usually finds that the other was faster, but one of
them can be lost between that check and its own write.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import logging
from etils import epath

from realm_jax.corpus import versions
from realm_jax.corpus.building.existing_documents import ExistingDocuments
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.manifest import (
  RemovedRecord,
  ShardRecord,
  make_manifest,
  paths_of,
  write_manifest,
)
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.shards.writer import (
  GrowingArray,
  ShardSeries,
  file_record,
)
from realm_jax.corpus.store import Corpus
from realm_jax.files.json_file import JsonValue
from realm_jax.files.local_disk.disk_full import explain_full_disk
from realm_jax.files.object_store.remote import is_remote
from realm_jax.files.whole import whole_directory
from realm_jax.files.whole.durable import sync, sync_tree


class VersionWriter:
  """Writes the next version of a corpus, as `VersionWriter.open` begins.

  Attributes:
    corpus: Version that is updated.
    version: Number of the new version.
    existing: Documents of `corpus`, without those that the new version lacks.
    shards: Shards of new documents.
  """

  def __init__(self, source: epath.Path, staging: Path, blocks_per_shard: int):
    self._source = source
    self._staging = staging
    self._manifest = versions.read(source)
    self.corpus = Corpus.open(source)
    self.version: int = self.corpus.version + 1
    self._update = f"v{self.version:08d}"
    if is_remote(source):
      # A concurrent update must not use the same names.
      self._update += f"-{secrets.token_hex(4)}"
    else:
      self._remove_unnamed()
    self.existing = ExistingDocuments(self.corpus)
    self.shards = ShardSeries(
      staging,
      lambda index: shard_format.shard_name(index, update=self._update),
      vocab_size=self.corpus.vocab_size,
      blocks_per_shard=blocks_per_shard,
    )

  @classmethod
  @contextlib.contextmanager
  def open(
    cls, output_dir: epath.PathLike, *, blocks_per_shard: int
  ) -> "Iterator[VersionWriter]":
    """Yields a writer; without `finish`, the corpus stays as it was."""
    source = epath.Path(output_dir)
    versions.read(source)  # Raises an error if there is none.
    if not is_remote(source):
      whole_directory.check_same_disk(source)
    with (
      explain_full_disk(source, advice="free some space"),
      # Locally, this also keeps other updates out.
      whole_directory.staging_directory(source) as staging,
    ):
      writer = cls(source, staging, blocks_per_shard)
      with contextlib.closing(writer.shards):
        yield writer

  def finish(
    self,
    *,
    summary: Mapping[str, JsonValue],
    drop_titles: Sequence[str] = (),
    keep_versions: int | None = None,
  ) -> None:
    """Completes the shards and makes the version the newest.

    Of all versions, the newest `keep_versions` are kept; None keeps all.

    Raises:
      CorpusError: It would have no block, or another update was faster.
    """
    manifest = make_manifest(
      name=self.corpus.name,
      version=self.version,
      block_length=self.corpus.block_length,
      vocabulary=self._manifest["vocabulary"],
      shards=[*self._old_shards(), *self.shards.finish()],
      summary=summary,
      drop_titles=drop_titles,
    )
    if not manifest["num_blocks"]:
      raise CorpusError(
        f"{self._source} would have no block left; a corpus needs at least one"
      )
    self._move_files()
    if versions.read(self._source) != self._manifest:
      # Possible on an object store, which has no locks.
      raise CorpusError(
        f"another process has updated {self._source} meanwhile; update it again"
      )
    kept = shard_format.manifest_path(self.corpus.version)
    write_manifest(self._source / kept, self._manifest)
    write_manifest(self._source / shard_format.MANIFEST_NAME, manifest)
    if keep_versions is not None:
      self._prune(keep_versions)

  def _old_shards(self) -> Iterator[ShardRecord]:
    """Yields the records of earlier shards, with all that was removed."""
    for record, shard in zip(
      self._manifest["shards"], self.corpus.shards, strict=True
    ):
      removed = self.existing.removed[shard]
      if not removed:
        yield record
        continue
      new = np.concatenate([np.array(d.positions) for d in removed])
      # Of a document, some blocks may have been removed as duplicates.
      positions = np.union1d(shard.removed, new)
      if len(shard.lengths) == len(positions):
        continue  # No block is left.
      name = shard_format.removed_path(record["name"], update=self._update)
      path = self._staging / name
      path.parent.mkdir(exist_ok=True)
      array = GrowingArray(path, np.dtype("<i8"), ())
      array.append(positions)
      array.finish()
      before = record.get("removed", {})
      yield {
        **record,
        "removed": RemovedRecord(
          path=name,
          num_blocks=len(positions),
          num_documents=before.get("num_documents", 0) + len(removed),
          num_tokens=int(shard.lengths[positions].sum()),
          **file_record(path),
        ),
      }

  def _move_files(self) -> None:
    """Puts new files where the manifest will name them."""
    if is_remote(self._source):
      whole_directory.upload_directory(self._staging, self._source)
      return
    sync_tree(self._staging)
    directory = Path(self._source)
    for path in sorted(self._staging.rglob("*")):
      target = directory / path.relative_to(self._staging)
      if path.is_dir():
        target.mkdir(exist_ok=True)
      else:
        os.replace(path, target)
    for path in self._staging.iterdir():
      sync(directory / path.name)
    sync(directory)

  def _prune(self, keep: int) -> None:
    """Removes versions, their manifests first, and what only they name."""
    manifests = versions.every(self._source)
    pruned = sorted(v for v in manifests if v <= self.version - keep)
    unused: set[str] = set()
    for version in pruned:
      (self._source / shard_format.manifest_path(version)).unlink()
      unused |= paths_of(manifests.pop(version))
    if pruned:
      logging.info("Removed versions %s of %s", pruned, self._source)
    self._remove(unused.difference(*map(paths_of, manifests.values())))

  def _remove_unnamed(self) -> None:
    """Removes what a killed update left."""
    found = {path.name for path in self._source.glob("shard-*")}
    removed = self._source / shard_format.REMOVED
    found |= {f"{removed.name}/{path.name}" for path in removed.glob("*")}
    manifests = versions.every(self._source).values()
    self._remove(found.difference(*map(paths_of, manifests)))

  def _remove(self, paths: set[str]) -> None:
    for name in sorted(paths):
      path = self._source / name
      if path.is_dir():
        path.rmtree()
      else:
        path.unlink(missing_ok=True)
