"""What a corpus directory looks like on disk.

    corpus.json          counts, vocabulary hash, fingerprint, shards; last
    vocab.txt
    shard-00000/*.npy    flat arrays and offsets, unpadded, memory-mapped

Everything ragged is a flat array and its offsets: item i of `x.npy` is
`x[x_offsets[i]:x_offsets[i + 1]]`. Documents are never split between shards.

An update adds to it and changes no file but `corpus.json`, which is always of
the newest version:

    shard-v00000002-00000/*.npy     documents that came with version 2
    removed/v00000002-shard-00000.npy
                         which blocks of a shard are gone from version 2 on, in
                         order, int64; their places are no rows any more
    versions/00000001.json          the manifest of an earlier version
"""

from pathlib import PurePath

import numpy as np

FORMAT_VERSION = 1
# Of a version in which blocks of a shard are gone.
FORMAT_WITH_REMOVED = 2
MANIFEST_NAME = "corpus.json"
VOCABULARY_NAME = "vocab.txt"
REMOVED = "removed"
VERSIONS = "versions"

# Name: (dtype, trailing dimensions). `token_ids` is uint16 where the
# vocabulary allows, which halves the largest array that training reads.
ARRAYS: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
  # By block.
  "block_ids": (np.dtype("<i8"), ()),
  "title_lengths": (np.dtype("<i4"), ()),
  "token_ids_offsets": (np.dtype("<i8"), ()),
  "byte_ranges_offsets": (np.dtype("<i8"), ()),
  "sentences_offsets": (np.dtype("<i8"), ()),
  "salient_spans_offsets": (np.dtype("<i8"), ()),
  "bodies_offsets": (np.dtype("<i8"), ()),
  # By token of title and body, then by token of the body.
  "token_ids": (np.dtype("<i4"), ()),
  "byte_ranges": (np.dtype("<i4"), (2,)),
  # Ranges of tokens of the body.
  "sentences": (np.dtype("<i4"), (2,)),
  "salient_spans": (np.dtype("<i4"), (2,)),
  # Original text, UTF-8.
  "bodies": (np.dtype("u1"), ()),
  # By document: the first block's place in the shard (and, last, the number of
  # blocks), and its texts.
  "document_starts": (np.dtype("<i8"), ()),
  "titles": (np.dtype("u1"), ()),
  "titles_offsets": (np.dtype("<i8"), ()),
  "document_ids": (np.dtype("u1"), ()),
  "document_ids_offsets": (np.dtype("<i8"), ()),
  "urls": (np.dtype("u1"), ()),
  "urls_offsets": (np.dtype("<i8"), ()),
}


def token_dtype(vocab_size: int) -> np.dtype:
  """The smallest dtype that holds every token id."""
  return np.dtype("<u2" if vocab_size <= 1 << 16 else "<i4")


def shard_name(index: int, *, update: str = "") -> str:
  """The folder of a shard of a whole build, or of an update."""
  return f"shard-{update}-{index:05d}" if update else f"shard-{index:05d}"


def removed_path(shard: str, *, update: str) -> str:
  """Where an update says which blocks of a shard are gone."""
  return str(PurePath(REMOVED, f"{update}-{shard}.npy"))


def manifest_path(version: int) -> str:
  """Where the manifest of a version lies once there is a newer one."""
  return str(PurePath(VERSIONS, f"{version:08d}.json"))
