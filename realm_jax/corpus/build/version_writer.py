"""Adds a version to a corpus directory, whole or not at all.

New files are written aside and moved to names that no version uses yet; then
the manifest of the version before is kept, and `corpus.json` replaced by one
rename (on an object store, by one write). A process that is killed before
that leaves the version before, and files that nothing names, which the next
update removes.

Locally a second update at once is refused. On an object store nobody can be
kept out: there the slower of two usually finds that the other was faster, but
between that look and its own write one of them can be lost.
"""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from realm_jax.corpus import versions
from realm_jax.corpus.build import written_aside
from realm_jax.corpus.build.directory_writer import as_text, fingerprint, totals
from realm_jax.corpus.build.known_documents import KnownDocuments
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.shards.writer import ShardSeries, file_record
from realm_jax.corpus.store import Corpus


class VersionWriter:
  """Writes the next version of a corpus; a context manager around an update.

  Leaving the context without `finish` leaves the corpus as it was.

  Attributes:
    corpus: the version that is updated.
    version: the number of the new one.
    known: the documents of `corpus`; those taken away are gone from the new
      version.
    shards: where new documents go.
  """

  def __init__(self, output_dir: epath.PathLike, *, blocks_per_shard: int):
    self._source = epath.Path(output_dir)
    self._is_local = not _is_remote(self._source)
    self._blocks_per_shard = blocks_per_shard
    versions.read(self._source)  # Complains now, if there is none.
    if self._is_local:
      written_aside.check_beside(
        written_aside.real_path(self._source), CorpusError
      )

  def __enter__(self) -> "VersionWriter":
    with contextlib.ExitStack() as stack:
      stack.enter_context(
        written_aside.explained_full_disk(
          self._source, CorpusError, advice="free some space"
        )
      )
      self._staging = stack.enter_context(_staging(self._source))
      self._manifest = versions.read(self._source)
      self.corpus = Corpus.open(self._source)
      self.version: int = self.corpus.version + 1
      self._update = f"v{self.version:08d}"
      if self._is_local:
        self._remove_unnamed()
      else:
        # Nobody can be kept out there, so that names must not be another's.
        self._update += f"-{secrets.token_hex(4)}"
      self.known = KnownDocuments(self.corpus)
      self.shards = ShardSeries(
        self._staging,
        lambda index: shard_format.shard_name(index, update=self._update),
        vocab_size=self.corpus.vocab_size,
        blocks_per_shard=self._blocks_per_shard,
      )
      self._leaving = stack.pop_all()
    return self

  def __exit__(self, *error: Any) -> None:
    self.shards.abandon()
    self._leaving.__exit__(*error)

  def finish(
    self, *, summary: dict[str, Any], keep_versions: int | None = None
  ) -> None:
    """Completes the shards and makes the version the newest.

    Args:
      summary: for the manifest.
      keep_versions: how many of the newest versions stay; None keeps all.

    Raises:
      CorpusError: it would have no block, or another update was faster.
    """
    shards = [*self._old_shards(), *self.shards.close()]
    manifest = self._manifest | {
      "format_version": (
        shard_format.FORMAT_WITH_REMOVED
        if any("removed" in shard for shard in shards)
        else shard_format.FORMAT_VERSION
      ),
      "corpus_version": self.version,
      **totals(shards),
      "summary": summary,
      "shards": shards,
    }
    if not manifest["num_blocks"]:
      raise CorpusError(
        f"{self._source} would have no block left; a corpus needs at least one"
      )
    manifest["fingerprint"] = fingerprint(manifest)
    self._move_files()
    if versions.read(self._source) != self._manifest:
      # On an object store nobody can be kept out.
      raise CorpusError(
        f"{self._source} was updated by another process meanwhile; update it "
        "again"
      )
    self._put(
      shard_format.manifest_path(self.corpus.version), as_text(self._manifest)
    )
    self._put(shard_format.MANIFEST_NAME, as_text(manifest))
    if keep_versions is not None:
      self._prune(keep_versions)

  def _old_shards(self) -> Iterator[dict[str, Any]]:
    """The entries of the version before, with what is gone since."""
    entries = self._manifest["shards"]
    for number, (entry, shard) in enumerate(
      zip(entries, self.corpus.shards, strict=True)
    ):
      taken = self.known.taken(number)
      if not len(taken):
        yield entry
        continue
      starts = shard.array("document_starts")
      gone = np.concatenate(
        [np.arange(*shard.document_places(n)) for n in taken.tolist()]
      )
      if starts[-1] == len(shard.removed) + len(gone):
        continue  # Nothing is left of it.
      name = shard_format.removed_path(entry["name"], update=self._update)
      path = self._staging / name
      path.parent.mkdir(exist_ok=True)
      with path.open("wb") as file:
        np.save(file, np.sort(np.concatenate([shard.removed, gone])))
        file.flush()
        os.fsync(file.fileno())
      before = entry.get("removed", {})
      counts = {
        "num_blocks": len(gone),
        "num_documents": len(taken),
        "num_tokens": int(shard.lengths[gone].sum()),
      }
      removed = {n: before.get(n, 0) + count for n, count in counts.items()}
      record = {"path": name, **removed, **file_record(path)}
      yield {**entry, "removed": record}

  def _move_files(self) -> None:
    """Puts new files where the manifest will name them."""
    for path in sorted(self._staging.rglob("*")):
      if not path.is_file():
        continue
      name = path.relative_to(self._staging)
      target = self._source / name
      target.parent.mkdir(parents=True, exist_ok=True)
      if self._is_local:
        os.replace(path, target)
      else:
        epath.Path(path).copy(target, overwrite=True)
    if self._is_local:
      folder = Path(self._source)
      for path in self._staging.iterdir():
        _sync(folder / path.name)
      _sync(folder)

  def _put(self, name: str, text: str) -> None:
    """Writes a file that is there whole or, locally, not at all."""
    target = self._source / name
    if not self._is_local:
      target.parent.mkdir(parents=True, exist_ok=True)
      target.write_text(text)
      return
    if not target.parent.exists():
      target.parent.mkdir()
      _sync(Path(self._source))
    partial = Path(target.with_name(f".{target.name}.partial"))
    with partial.open("w", encoding="utf-8") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    partial.replace(target)
    _sync(partial.parent)

  def _prune(self, keep: int) -> None:
    # The newest is not among the earlier ones.
    earlier = versions.earlier_versions(self._source)
    gone = [v for v in earlier if v <= self.version - keep]
    had: set[str] = set()
    for version in gone:
      path = self._source / shard_format.manifest_path(version)
      had |= _paths_of(versions.parse(path))
      path.unlink()
    if gone:
      logging.info("versions %s of %s are gone", gone, self._source)
    self._remove(had - self._named())

  def _named(self) -> set[str]:
    """The shards and files that any version names."""
    named = _paths_of(versions.read(self._source))
    for version in versions.earlier_versions(self._source):
      path = self._source / shard_format.manifest_path(version)
      named |= _paths_of(versions.parse(path))
    return named

  def _remove_unnamed(self) -> None:
    """Removes what an update has left that was killed."""
    there = {path.name for path in self._source.glob("shard-*")}
    removed = self._source / shard_format.REMOVED
    there |= {f"{removed.name}/{path.name}" for path in removed.glob("*")}
    self._remove(there - self._named())

  def _remove(self, paths: set[str]) -> None:
    for name in sorted(paths):
      path = self._source / name
      if path.is_dir():
        path.rmtree()
      else:
        path.unlink(missing_ok=True)


def _paths_of(manifest: versions.Manifest) -> set[str]:
  """The folders of a version's shards, and its files of what is removed."""
  paths = {shard["name"] for shard in manifest["shards"]}
  removed = (shard.get("removed") for shard in manifest["shards"])
  return paths | {record["path"] for record in removed if record}


def _is_remote(directory: epath.Path) -> bool:
  return "://" in str(directory)


@contextlib.contextmanager
def _staging(directory: epath.Path) -> Iterator[Path]:
  """An empty folder, and locally the right to change the corpus."""
  if _is_remote(directory):
    with tempfile.TemporaryDirectory(prefix="realm_jax_update_") as folder:
      yield Path(folder)
    return
  with written_aside.written_aside(
    written_aside.real_path(directory), CorpusError
  ) as folder:
    yield folder


def _sync(path: Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
