"""Puts a corpus directory in place whole, or not at all.

Shards are written to a hidden directory beside the target, which takes the
target's name when it is complete; a build that is killed leaves that hidden
directory, and the next build of the same target clears it away. On an object
store, which cannot rename, `corpus.json` is written last: without it a
directory is no corpus.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from realm_jax.corpus.build import written_aside
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.shards.writer import ShardSeries, ShardWriter
from realm_jax.text.wordpieces import vocabulary_sha256, write_pieces


def check_target(output_dir: epath.Path, *, overwrite: bool) -> None:
  """Raises `CorpusError` where a corpus must not be written."""
  written_aside.check_place(output_dir, CorpusError)
  if not output_dir.exists() or not any(output_dir.iterdir()):
    return
  if not (output_dir / shard_format.MANIFEST_NAME).exists():
    raise CorpusError(
      f"{output_dir} has files in it and is no corpus; name a new directory"
    )
  if not overwrite:
    raise CorpusError(
      f"{output_dir} holds a corpus; name another directory, or replace it "
      "with --overwrite"
    )


class CorpusDirectoryWriter:
  """Writes the shards of one corpus; a context manager around the build.

  Leaving the context without `finish` removes what was written.
  """

  def __init__(
    self,
    output_dir: epath.PathLike,
    *,
    pieces: tuple[str, ...],
    blocks_per_shard: int,
    overwrite: bool = False,
  ):
    self._target = epath.Path(output_dir)
    check_target(self._target, overwrite=overwrite)
    self._pieces = pieces
    self._blocks_per_shard = blocks_per_shard
    self._is_local = "://" not in str(output_dir)

  def __enter__(self) -> "CorpusDirectoryWriter":
    with contextlib.ExitStack() as stack:
      stack.enter_context(
        written_aside.explained_full_disk(self._target, CorpusError)
      )
      self._staging = stack.enter_context(
        written_aside.written_aside(
          written_aside.real_path(self._target), CorpusError
        )
        if self._is_local
        else _temporary_folder()
      )
      self._leaving = stack.pop_all()
    self.shards = ShardSeries(
      self._staging,
      shard_format.shard_name,
      vocab_size=len(self._pieces),
      blocks_per_shard=self._blocks_per_shard,
    )
    return self

  def __exit__(self, *error: Any) -> None:
    self.shards.abandon()
    self._leaving.__exit__(*error)

  @property
  def shard(self) -> ShardWriter:
    """Where the next document goes."""
    return self.shards.shard

  def finish(
    self, *, version: int, block_length: int, summary: dict[str, Any]
  ) -> None:
    """Completes the shards, writes the manifest, puts all in place."""
    shards = self.shards.close()
    write_pieces(self._staging / shard_format.VOCABULARY_NAME, self._pieces)
    ids = {piece: index for index, piece in enumerate(self._pieces)}
    manifest: dict[str, Any] = {
      "format_version": shard_format.FORMAT_VERSION,
      "corpus_version": version,
      "block_length": block_length,
      "vocabulary": {
        "sha256": vocabulary_sha256(self._pieces),
        "size": len(self._pieces),
        "special_ids": {
          name: ids[f"[{name.upper()}]"]
          for name in ("pad", "unk", "cls", "sep", "mask")
        },
      },
      **totals(shards),
      "summary": summary,
      "shards": shards,
    }
    manifest["fingerprint"] = fingerprint(manifest)
    path = self._staging / shard_format.MANIFEST_NAME
    with path.open("w", encoding="utf-8") as file:
      file.write(as_text(manifest))
      file.flush()
      os.fsync(file.fileno())
    if self._is_local:
      self._rename()
    else:
      self._upload()

  def _rename(self) -> None:
    target = written_aside.real_path(self._target)
    replaced = target.parent / f".{target.name}.replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():
      target.rename(replaced)
    self._staging.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)

  def _upload(self) -> None:
    manifest = self._target / shard_format.MANIFEST_NAME
    manifest.unlink(missing_ok=True)
    # An earlier corpus's, of which an update would find versions.
    for folder in (shard_format.VERSIONS, shard_format.REMOVED):
      (self._target / folder).rmtree(missing_ok=True)
    for path in sorted(self._staging.rglob("*")):
      if path.is_file() and path.name != shard_format.MANIFEST_NAME:
        target = self._target / path.relative_to(self._staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        epath.Path(path).copy(target, overwrite=True)
    source = epath.Path(self._staging / shard_format.MANIFEST_NAME)
    source.copy(manifest, overwrite=True)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
  with tempfile.TemporaryDirectory(prefix="realm_jax_corpus_") as folder:
    yield Path(folder)


def as_text(manifest: dict[str, Any]) -> str:
  """A manifest as it lies on disk."""
  return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def totals(shards: list[dict[str, Any]]) -> dict[str, int]:
  """What the shards hold together, without what an update removed."""
  return {
    name: sum(
      shard[name] - shard.get("removed", {}).get(name, 0) for shard in shards
    )
    for name in ("num_blocks", "num_documents", "num_tokens")
  }


def fingerprint(manifest: dict[str, Any]) -> str:
  """A hash of all that a reader of the corpus sees, texts and arrays alike.

  It does not depend on the corpus version: the same documents, built with the
  same settings, have the same fingerprint whatever the number.
  """
  identity = {
    "format_version": manifest["format_version"],
    "block_length": manifest["block_length"],
    "vocabulary": manifest["vocabulary"]["sha256"],
    "files": [_files(shard) for shard in manifest["shards"]],
  }
  return hashlib.sha256(
    json.dumps(identity, sort_keys=True).encode()
  ).hexdigest()


def _files(shard: dict[str, Any]) -> dict[str, Any]:
  if "removed" not in shard:
    return shard["files"]
  return {**shard["files"], "removed": shard["removed"]["sha256"]}
