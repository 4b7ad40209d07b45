"""Shards joined from the parts that their plans name."""

import contextlib
import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from etils import epath
from jaxtyping import Int

from realm_jax.corpus.building.block_identity import block_id
from realm_jax.corpus.building.parallel.parts import read_part
from realm_jax.corpus.building.parallel.plan import PartSlice, ShardPlan
from realm_jax.corpus.manifest import RemovedRecord, ShardRecord
from realm_jax.corpus.shards import format as shard_format
from realm_jax.corpus.shards.blocks import Blocks
from realm_jax.corpus.shards.writer import (
  GrowingArray,
  ShardWriter,
  file_record,
)
from realm_jax.files.json_file import whole_text_file
from realm_jax.files.local_disk.scratch import ScratchDirectory
from realm_jax.files.object_store.remote import is_remote
from realm_jax.files.whole import whole_directory

# Blocks that a build removed since they equal an earlier one.
_DUPLICATES = "duplicates"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardMaker:
  """Makes a shard of a plan; it can be sent to other processes.

  Attributes:
    directory: Folder of the shards, which all processes can access.
    records: Folder for the shards' records.
  """

  directory: str
  records: str
  corpus_name: str
  vocab_size: int

  def __call__(self, plan: ShardPlan) -> None:
    """Writes a shard, and its record for `read_records`."""
    with self._local_folder() as folder:
      name = shard_format.shard_name(plan.number)
      # Of an attempt that failed.
      shutil.rmtree(folder / name, ignore_errors=True)
      shard = ShardWriter(folder / name, vocab_size=self.vocab_size)
      for part in plan.slices:
        shard.append(self._blocks(part))
      record = shard.finish()
      if plan.removed.size:
        record["removed"] = _remove(folder, name, plan.removed)
    path = epath.Path(self.records) / f"{name}.json"
    with whole_text_file(path) as file:
      json.dump(record, file)

  @contextlib.contextmanager
  def _local_folder(self) -> Iterator[Path]:
    target = epath.Path(self.directory)
    if not is_remote(target):
      yield Path(target)
      return
    with ScratchDirectory() as scratch:
      yield scratch.path
      whole_directory.upload_directory(scratch.path, target)

  def _blocks(self, part: PartSlice) -> Blocks:
    blocks = read_part(part.path).built.blocks
    if part.repeats:
      blocks = self._numbered(blocks, part.repeats)
    return blocks.between(part.first, part.limit)

  def _numbered(self, blocks: Blocks, repeats: dict[int, int]) -> Blocks:
    """Gives documents with the contents of earlier ones ids of their own."""
    arrays = blocks.arrays
    offsets = arrays["document_ids_offsets"]
    names = [
      arrays["document_ids"][start:limit].tobytes().decode()
      for start, limit in itertools.pairwise(offsets)
    ]
    ids, starts = arrays["block_ids"].copy(), arrays["document_starts"]
    for document, number in repeats.items():
      names[document] += f"-{number}"
      for ordinal, row in enumerate(range(*starts[document : document + 2])):
        ids[row] = block_id(self.corpus_name, names[document], ordinal)
    encoded = [name.encode() for name in names]
    changed = {
      "block_ids": ids,
      "document_ids": np.frombuffer(b"".join(encoded), np.uint8),
      "document_ids_offsets": np.cumsum([0, *map(len, encoded)]),
    }
    needed = {name: arrays[name] for name in shard_format.ARRAYS}
    return Blocks({**needed, **changed}, span_kinds=blocks.span_kinds)


def _remove(
  folder: Path, shard: str, positions: Int[np.ndarray, " r"]
) -> RemovedRecord:
  """Lists the blocks of a shard that are removed."""
  name = shard_format.removed_path(shard, update=_DUPLICATES)
  path = folder / name
  path.parent.mkdir(exist_ok=True)
  array = GrowingArray(path, np.dtype("<i8"), ())
  array.append(positions)
  array.finish()
  lengths = np.diff(np.load(folder / shard / "token_ids_offsets.npy"))
  starts = np.load(folder / shard / "document_starts.npy")
  is_left = np.ones(len(lengths), np.int64)
  is_left[positions] = 0
  left = np.diff(np.append(0, np.cumsum(is_left))[starts])
  return RemovedRecord(
    path=name,
    num_blocks=len(positions),
    num_documents=int((left == 0).sum()),
    num_tokens=int(lengths[positions].sum()),
    **file_record(path),
  )


def read_records(
  directory: epath.Path, plans: Sequence[ShardPlan]
) -> list[ShardRecord]:
  """Returns the records of all shards, which `ShardMaker` has written."""
  names = [shard_format.shard_name(plan.number) for plan in plans]
  texts = [(directory / f"{name}.json").read_text() for name in names]
  return [cast(ShardRecord, json.loads(text)) for text in texts]
