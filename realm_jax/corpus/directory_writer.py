"""A new corpus directory, which appears complete or not at all.

Shards are written to a staging directory, which replaces the target when it
is complete. On an object store, which cannot rename, `corpus.json` is written
last: without it a directory is no corpus.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from etils import epath

from realm_jax.corpus import CorpusError
from realm_jax.corpus import manifest as manifests
from realm_jax.corpus.manifest import ShardRecord, VocabularyRecord
from realm_jax.storage import atomic
from realm_jax.storage.atomic import (
  rename_into_place,
  staging_directory,
)
from realm_jax.storage.json_files import JsonValue
from realm_jax.storage.local_disk import explain_full_disk
from realm_jax.storage.paths import is_remote, upload_directory
from realm_jax.text.wordpieces import vocabulary_sha256, write_pieces


def check_target(output_dir: epath.PathLike, *, overwrite: bool) -> None:
  """Checks that a corpus may be written.

  Raises:
    CorpusError: The directory has a corpus or other files.
    TargetError: The path is a file, or a disk is mounted there.
  """
  path = epath.Path(output_dir)
  atomic.check_target(path)
  if not path.exists() or not any(path.iterdir()):
    return
  if not (path / manifests.MANIFEST_NAME).exists():
    raise CorpusError(
      f"{path} has files in it and is no corpus; name a new directory"
    )
  if not overwrite:
    raise CorpusError(
      f"{path} holds a corpus; name another directory, or replace it with "
      "--overwrite"
    )


@dataclasses.dataclass(frozen=True)
class CorpusDirectoryWriter:
  """A corpus that is being written, as `CorpusDirectoryWriter.open` begins.

  Attributes:
    target: Directory of the corpus.
    name: Name of the corpus.
    staging: Local directory for its shards.
    pieces: Vocabulary.
  """

  target: epath.Path
  name: str
  staging: Path
  pieces: tuple[str, ...]
  overwrite: bool

  @classmethod
  @contextlib.contextmanager
  def open(
    cls,
    output_dir: epath.PathLike,
    *,
    pieces: tuple[str, ...],
    name: str | None = None,
    overwrite: bool = False,
  ) -> "Iterator[CorpusDirectoryWriter]":
    """Yields a writer; without `finish`, what the block wrote is removed.

    `name` is by default that of the directory.
    """
    check_target(output_dir, overwrite=overwrite)
    target = epath.Path(output_dir)
    if not name:
      # A relative path such as ".." has no name of its own.
      path = target if is_remote(target) else Path(target).resolve()
      name = path.name
    advice = "free some space, or name another --output_dir"
    with (
      explain_full_disk(target, advice=advice),
      staging_directory(target) as staging,
    ):
      yield cls(target, name, staging, pieces, overwrite)

  def finish(
    self,
    *,
    block_length: int,
    summary: Mapping[str, JsonValue],
    shards: list[ShardRecord],
    drop_titles: Sequence[str] = (),
  ) -> None:
    """Makes shards a corpus: see `make_manifest`.

    `shards` are the records of those in `staging`, or in the directory on an
    object store.
    """
    write_pieces(self.staging / manifests.VOCABULARY_NAME, self.pieces)
    special = ("pad", "unk", "cls", "sep", "mask")
    manifest = manifests.make_manifest(
      name=self.name,
      block_length=block_length,
      vocabulary=VocabularyRecord(
        sha256=vocabulary_sha256(self.pieces),
        size=len(self.pieces),
        special_ids={
          name: self.pieces.index(f"[{name.upper()}]") for name in special
        },
      ),
      shards=shards,
      summary=summary,
      drop_titles=drop_titles,
    )
    manifests.write_manifest(self.staging / manifests.MANIFEST_NAME, manifest)
    if is_remote(self.target):
      self._upload()
    else:
      rename_into_place(self.staging, self.target, overwrite=self.overwrite)

  def _upload(self) -> None:
    (self.target / manifests.MANIFEST_NAME).unlink(missing_ok=True)
    # Folders of an earlier corpus, in which an update would find versions.
    for folder in (manifests.VERSIONS, manifests.REMOVED):
      (self.target / folder).rmtree(missing_ok=True)
    upload_directory(self.staging, self.target, last=manifests.MANIFEST_NAME)
