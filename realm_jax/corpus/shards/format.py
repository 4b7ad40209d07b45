"""Format of a corpus directory.

    corpus.json          manifest of the newest version, written last
    vocab.txt
    shard-00000/*.npy    flat arrays and offsets, unpadded, memory-mapped

Ragged data are a flat array and its offsets: item i of `x.npy` is
`x[x_offsets[i]:x_offsets[i + 1]]`. Documents are never split between shards.

Kinds of salient spans are numbers, which index the names that the manifest
lists for the shard: `salient_span_kinds` is parallel to `salient_spans`.

An update adds files and changes none but `corpus.json`:

    shard-v00000002-00000/*.npy     documents that came with version 2
    removed/v00000002-shard-00000.npy
                         sorted positions of the blocks of a shard that were
                         removed in version 2 or before, int64
    versions/00000001.json          manifest of an earlier version
"""

from pathlib import PurePath

import numpy as np

FORMAT_VERSION = 3
MANIFEST_NAME = "corpus.json"
VOCABULARY_NAME = "vocab.txt"
REMOVED = "removed"
VERSIONS = "versions"
# [CLS], and [SEP] after the title and after the body of a block.
NUM_SPECIAL_TOKENS = 3
# These, and at least one piece of the title and of the body.
MIN_BLOCK_LENGTH = 8

# Name: (dtype, trailing dimensions). `token_ids` is uint16 where the
# vocabulary allows, which halves the largest array that training reads.
ARRAYS: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
  # One row for each block.
  "block_ids": (np.dtype("<i8"), ()),
  "content_hashes": (np.dtype("<i8"), ()),
  "title_lengths": (np.dtype("<i4"), ()),
  "token_ids_offsets": (np.dtype("<i8"), ()),
  "byte_ranges_offsets": (np.dtype("<i8"), ()),
  "sentences_offsets": (np.dtype("<i8"), ()),
  "salient_spans_offsets": (np.dtype("<i8"), ()),
  "bodies_offsets": (np.dtype("<i8"), ()),
  # One row for each token of title and body.
  "token_ids": (np.dtype("<i4"), ()),
  # One row for each token of the body: its bytes in `bodies`.
  "byte_ranges": (np.dtype("<i4"), (2,)),
  # Ranges of the body's tokens.
  "sentences": (np.dtype("<i4"), (2,)),
  "salient_spans": (np.dtype("<i4"), (2,)),
  # One row for each salient span: its kind.
  "salient_span_kinds": (np.dtype("u1"), ()),
  # Original text, UTF-8.
  "bodies": (np.dtype("u1"), ()),
  # One row for each document: the position of its first block in the shard
  # (and at last the number of blocks), and its texts.
  "document_starts": (np.dtype("<i8"), ()),
  "titles": (np.dtype("u1"), ()),
  "titles_offsets": (np.dtype("<i8"), ()),
  "document_ids": (np.dtype("u1"), ()),
  "document_ids_offsets": (np.dtype("<i8"), ()),
  "urls": (np.dtype("u1"), ()),
  "urls_offsets": (np.dtype("<i8"), ()),
}


def token_dtype(vocab_size: int) -> np.dtype:
  """Returns the smallest dtype that holds every token id."""
  return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


def shard_name(index: int, *, update: str = "") -> str:
  """Returns the folder of a shard, of a whole build or of an update."""
  return f"shard-{update}-{index:05d}" if update else f"shard-{index:05d}"


def removed_path(shard: str, *, update: str) -> str:
  """Returns the file in which an update lists a shard's removed blocks."""
  return str(PurePath(REMOVED, f"{update}-{shard}.npy"))


def manifest_path(version: int) -> str:
  """Returns the file of a version's manifest once there is a newer one."""
  return str(PurePath(VERSIONS, f"{version:08d}.json"))
