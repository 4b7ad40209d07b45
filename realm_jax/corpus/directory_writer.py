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

from realm_jax.corpus import shard_format, written_aside
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.shard_writer import ShardWriter
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
    self._shard: ShardWriter | None = None
    self._shards: list[dict[str, Any]] = []
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
    return self

  def __exit__(self, *error: Any) -> None:
    if self._shard:
      self._shard.abandon()
    self._leaving.__exit__(*error)

  @property
  def shard(self) -> ShardWriter:
    """Where the next document goes."""
    if self._shard and self._shard.num_blocks >= self._blocks_per_shard:
      self._close_shard()
    if self._shard is None:
      directory = self._staging / shard_format.shard_name(len(self._shards))
      self._shard = ShardWriter(directory, vocab_size=len(self._pieces))
    return self._shard

  def _close_shard(self) -> None:
    if self._shard:
      self._shards.append(self._shard.close())
      self._shard = None

  def finish(
    self, *, version: int, block_length: int, summary: dict[str, Any]
  ) -> None:
    """Completes the shards, writes the manifest, puts all in place."""
    self._close_shard()
    write_pieces(self._staging / shard_format.VOCABULARY_NAME, self._pieces)
    ids = {piece: index for index, piece in enumerate(self._pieces)}
    manifest = {
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
      "num_blocks": sum(shard["num_blocks"] for shard in self._shards),
      "num_documents": sum(shard["num_documents"] for shard in self._shards),
      "num_tokens": sum(shard["num_tokens"] for shard in self._shards),
      "summary": summary,
      "shards": self._shards,
    }
    manifest["fingerprint"] = fingerprint(manifest)
    path = self._staging / shard_format.MANIFEST_NAME
    with path.open("w", encoding="utf-8") as file:
      json.dump(manifest, file, indent=2, ensure_ascii=False)
      file.write("\n")
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


def fingerprint(manifest: dict[str, Any]) -> str:
  """A hash of all that a reader of the corpus sees, texts and arrays alike.

  It does not depend on the corpus version: two versions with the same contents
  have the same fingerprint.
  """
  identity = {
    "format_version": manifest["format_version"],
    "block_length": manifest["block_length"],
    "vocabulary": manifest["vocabulary"]["sha256"],
    "files": [shard["files"] for shard in manifest["shards"]],
  }
  return hashlib.sha256(
    json.dumps(identity, sort_keys=True).encode()
  ).hexdigest()
