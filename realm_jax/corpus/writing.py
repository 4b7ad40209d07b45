"""Writes corpora: shards, and a directory that appears complete or not at all.

Shards are written to a staging directory, which replaces the target when it is
complete. An object store cannot rename, so `corpus.json` is written last there:
without it, a directory is no corpus.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from etils import epath
from jaxtyping import Bool

from realm_jax.corpus import CorpusError
from realm_jax.corpus import manifest as manifests
from realm_jax.corpus.manifest import ShardRecord
from realm_jax.corpus.shard import ARRAYS, LINK_ARRAYS
from realm_jax.storage import atomic
from realm_jax.storage.json_files import write_json
from realm_jax.storage.local_disk import explain_full_disk, save_array
from realm_jax.storage.paths import is_remote, upload_directory
from realm_jax.storage.staging import FileRecord
from realm_jax.text.vocabulary import SPECIAL_PIECES, BertVocabulary
from realm_jax.text.vocabulary_files import write_vocabulary

# Maximum number of bytes of text in a shard.
SHARD_BYTES = 64 << 20


# Arrays of whole documents and their blocks, in order: `ARRAYS`, and optionally
# `LINK_ARRAYS`. Offsets start at 0. Integers other than `token_ids` may have
# any type. Kinds of salient spans and relations are names.
Blocks: TypeAlias = Mapping[str, np.ndarray]


# --- Shards -------------------------------------------------------------


def write_shards(
  directory: Path, blocks: Iterable[Blocks], *, prefix: str = "shard"
) -> list[ShardRecord]:
  """Writes documents to shards in folders of a local directory.

  A shard is in memory until it has at least `SHARD_BYTES` of text, and is then
  written. Returns the shards' records for the manifest.
  """
  blocks = iter(blocks)

  def blocks_of_shard() -> Iterator[Blocks]:
    size = 0
    while size < SHARD_BYTES and (part := next(blocks, None)):
      size += len(part["bodies"])
      yield part

  records: list[ShardRecord] = []
  while record := write_shard(
    directory / f"{prefix}-{len(records):05d}", blocks_of_shard()
  ):
    records.append(record)
  return records


def write_shard(folder: Path, blocks: Iterable[Blocks]) -> ShardRecord | None:
  """Writes documents to a new folder; returns None if there is no block."""
  parts: list[dict[str, np.ndarray]] = []
  kinds: dict[str, int] = {}
  # A plain link has the empty relation.
  relations = {"": 0}
  for part in blocks:
    if not len(part["block_ids"]):
      continue
    # Kinds of spans are numbered in order of their first occurrence.
    names = part["salient_span_kinds"].tolist()
    numbers = [kinds.setdefault(name, len(kinds)) for name in names]
    part = {**part, "salient_span_kinds": np.array(numbers, np.int64)}
    dtypes = {**ARRAYS, "token_ids": part["token_ids"].dtype}
    if "links" in part:
      dtypes |= LINK_ARRAYS
      names = part["link_relations"].tolist()
      numbers = [relations.setdefault(n, len(relations)) for n in names]
      part["link_relations"] = np.array(numbers, np.int64)
    # Converted at once, because the files' dtypes take less memory.
    parts.append(
      {
        name: np.ascontiguousarray(part[name], dtype)
        for name, dtype in dtypes.items()
      }
    )
  if not parts:
    return None
  has_links = any(len(part.get("links", ())) for part in parts)
  folder.mkdir(parents=True)
  files = {}
  for name in (*ARRAYS, *(LINK_ARRAYS if has_links else ())):
    values = [part[name] for part in parts]
    if name == "document_starts" or name.endswith("_offsets"):
      # The offsets of a part continue where the previous part ends.
      sizes = np.concatenate([np.diff(offsets) for offsets in values])
      values = [np.zeros(1, np.int64), np.cumsum(sizes)]
    path = folder / f"{name}.npy"
    save_array(path, np.concatenate(values))
    files[path.name] = FileRecord.of(path, path.name).entry
  return {
    "name": folder.name,
    "num_blocks": sum(len(part["block_ids"]) for part in parts),
    "num_documents": sum(len(part["document_hashes"]) for part in parts),
    "num_tokens": sum(len(part["token_ids"]) for part in parts),
    "span_kinds": list(kinds),
    **({"relations": list(relations)} if has_links else {}),
    "files": files,
  }


def write_removed(
  directory: Path,
  shard: str,
  is_removed: Bool[np.ndarray, " n"],
  *,
  prefix: str,
  array: Callable[[str], np.ndarray],
) -> dict[str, Any]:
  """Writes the sorted positions of a shard's removed blocks.

  `array` reads an array of the shard by its name.
  """
  name = f"{manifests.REMOVED}/{prefix}-{shard}.npy"
  (directory / name).parent.mkdir(exist_ok=True)
  positions = np.flatnonzero(is_removed)
  left = np.append(0, np.cumsum(~is_removed))[array("document_starts")]
  lengths = np.diff(array("token_ids_offsets"))
  save_array(directory / name, positions.astype("<i8"))
  return {
    "path": name,
    "num_blocks": len(positions),
    "num_documents": int((left[1:] == left[:-1]).sum()),
    "num_tokens": int(lengths[positions].sum()),
    **FileRecord.of(directory / name, name).entry,
  }


# --- Directories --------------------------------------------------------


def check_target(output_dir: epath.PathLike, *, overwrite: bool) -> None:
  """Raises a `CorpusError` if a directory has a corpus, or other files.

  Raises a `TargetError` if it is a file, or a mount point.
  """
  path = epath.Path(output_dir)
  atomic.check_target(path)
  if (path / manifests.MANIFEST_NAME).exists():
    if not overwrite:
      raise CorpusError(
        f"{path} holds a corpus; name another directory, or replace it with "
        "--overwrite"
      )
  elif path.exists() and any(path.iterdir()):
    raise CorpusError(
      f"{path} has files in it and is no corpus; name a new directory"
    )


@contextlib.contextmanager
def new_corpus(
  output_dir: epath.PathLike, *, overwrite: bool = False
) -> Iterator[Path]:
  """Yields a local directory, which becomes the corpus when the block ends.

  The `with` block writes shards to it, and finally calls `finish`. If it raises
  an error, its files are removed. Shards may also be written to `output_dir` on
  an object store. Call `check_target` first.
  """
  target = epath.Path(output_dir)
  advice = "free some space, or name another --output_dir"
  with (
    explain_full_disk(target, advice=advice),
    atomic.staging_directory(target) as staging,
  ):
    yield staging
    if not is_remote(target):
      atomic.rename_into_place(staging, target, overwrite=overwrite)
      return
    (target / manifests.MANIFEST_NAME).unlink(missing_ok=True)
    # Otherwise an update would find versions of an earlier corpus here.
    for folder in (manifests.VERSIONS, manifests.REMOVED, manifests.VIEWS):
      (target / folder).rmtree(missing_ok=True)
    upload_directory(staging, target, last=manifests.MANIFEST_NAME)


def finish(
  staging: Path, *, vocabulary: BertVocabulary, **settings: Any
) -> None:
  """Writes the vocabulary, and the manifest of version 1, with settings."""
  write_vocabulary(staging, vocabulary)
  ids = {
    piece.strip("[]").lower(): vocabulary.pieces.index(piece)
    for piece in SPECIAL_PIECES
  }
  record = {
    "sha256": vocabulary.digest,
    "size": vocabulary.size,
    "special_ids": ids,
  }
  usual = {"corpus_version": 1, "drop_titles": [], "fields": []}
  manifest = manifests.completed({**usual, "vocabulary": record, **settings})
  write_json(staging / manifests.MANIFEST_NAME, manifest)
