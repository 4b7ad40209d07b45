"""A new corpus directory, which appears complete or not at all.

Shards are written to a staging directory, which replaces the target when it
is complete. On an object store, which cannot rename, `corpus.json` is written
last: without it a directory is no corpus.
"""

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType

from etils import epath

from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.manifest import (
  VocabularyRecord,
  make_manifest,
  write_manifest,
)
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.shards.writer import ShardSeries, ShardWriter
from realm_jax.files import whole_directory
from realm_jax.files.disk_full import explain_full_disk
from realm_jax.files.json_file import JsonValue
from realm_jax.files.remote import is_remote
from realm_jax.text.wordpieces import vocabulary_sha256, write_pieces


def check_target(output_dir: epath.PathLike, *, overwrite: bool) -> None:
  """Checks that a corpus may be written.

  Raises:
    CorpusError: The directory has a corpus or other files.
    TargetError: The path is a file, or a disk is mounted there.
  """
  path = epath.Path(output_dir)
  whole_directory.check_target(path)
  if not path.exists() or not any(path.iterdir()):
    return
  if not (path / shard_format.MANIFEST_NAME).exists():
    raise CorpusError(
      f"{path} has files in it and is no corpus; name a new directory"
    )
  if not overwrite:
    raise CorpusError(
      f"{path} holds a corpus; name another directory, or replace it with "
      "--overwrite"
    )


class CorpusDirectoryWriter:
  """Writes the shards of a new corpus; a context manager around the build.

  If the context ends without `finish`, what was written is removed.
  """

  def __init__(
    self,
    output_dir: epath.PathLike,
    *,
    pieces: tuple[str, ...],
    blocks_per_shard: int,
    overwrite: bool = False,
  ):
    check_target(output_dir, overwrite=overwrite)
    self._target = epath.Path(output_dir)
    self._pieces = pieces
    self._blocks_per_shard = blocks_per_shard
    self._overwrite = overwrite

  def __enter__(self) -> "CorpusDirectoryWriter":
    with contextlib.ExitStack() as stack:
      stack.enter_context(
        explain_full_disk(
          self._target, advice="free some space, or name another --output_dir"
        )
      )
      self._staging = stack.enter_context(
        whole_directory.staging_directory(self._target)
      )
      self.shards = ShardSeries(
        self._staging,
        shard_format.shard_name,
        vocab_size=len(self._pieces),
        blocks_per_shard=self._blocks_per_shard,
      )
      stack.callback(self.shards.abandon)
      self._exit_stack = stack.pop_all()
    return self

  def __exit__(
    self,
    exception_type: type[BaseException] | None,
    exception: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self._exit_stack.__exit__(exception_type, exception, traceback)

  @property
  def shard(self) -> ShardWriter:
    """The shard to which the next document is added."""
    return self.shards.shard

  def finish(
    self,
    *,
    version: int,
    block_length: int,
    summary: Mapping[str, JsonValue],
    drop_titles: Sequence[str] = (),
  ) -> None:
    """Completes the shards and makes them the corpus.

    Args:
      version: Number of the version.
      block_length: Largest number of wordpieces in a block.
      summary: Counts for the manifest.
      drop_titles: Texts of the title filter, which later updates apply.
    """
    shards = self.shards.close()
    write_pieces(self._staging / shard_format.VOCABULARY_NAME, self._pieces)
    ids = {piece: index for index, piece in enumerate(self._pieces)}
    vocabulary = VocabularyRecord(
      sha256=vocabulary_sha256(self._pieces),
      size=len(self._pieces),
      special_ids={
        name: ids[f"[{name.upper()}]"]
        for name in ("pad", "unk", "cls", "sep", "mask")
      },
    )
    manifest = make_manifest(
      version=version,
      block_length=block_length,
      vocabulary=vocabulary,
      shards=shards,
      summary=summary,
      drop_titles=drop_titles,
    )
    write_manifest(self._staging / shard_format.MANIFEST_NAME, manifest)
    if is_remote(self._target):
      self._upload()
    else:
      whole_directory.rename_into_place(
        self._staging, self._target, overwrite=self._overwrite
      )

  def _upload(self) -> None:
    (self._target / shard_format.MANIFEST_NAME).unlink(missing_ok=True)
    # Folders of an earlier corpus, in which an update would find versions.
    for folder in (shard_format.VERSIONS, shard_format.REMOVED):
      (self._target / folder).rmtree(missing_ok=True)
    whole_directory.copy_files(
      self._staging, self._target, last=shard_format.MANIFEST_NAME
    )
