"""What the item `loop` of a checkpoint says to others than the trainer.

It records the generation in use and the digest of the vocabulary: another
vocabulary of the same size has the same shapes. Where a checkpoint has the
vectors of all blocks, it names the corpus version that they are of.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import PyTree, UInt8

from realm_jax.checkpoints.manager import CheckpointError, CheckpointStore

# The names of the digests.
VOCABULARY = "vocabulary"
VECTORS_CORPUS = "vectors_corpus"
_NO_GENERATION = -1


def generation_record(generation: int | None) -> dict[str, np.int64]:
  """Returns the entry of the item; None is for a run without generations."""
  step = _NO_GENERATION if generation is None else generation
  return {"generation": np.int64(step)}


def recorded_generation(item: Mapping[str, PyTree]) -> int | None:
  """Returns the generation that an item records."""
  step = int(item["generation"])
  return None if step == _NO_GENERATION else step


def digest_bytes(sha256: str) -> UInt8[np.ndarray, "32"]:
  """Returns the bytes of a hexadecimal SHA-256."""
  return np.frombuffer(bytes.fromhex(sha256), np.uint8)


def require_vocabulary(store: CheckpointStore, step: int, sha256: str) -> None:
  """Refuses a checkpoint that was trained with another vocabulary.

  A checkpoint that no trainer wrote has no digest and is accepted.

  Raises:
    CheckpointError: The digests differ.
  """
  if "loop" not in store.items(step):
    return
  own = store.restore(step, items=("loop",))["loop"].get(VOCABULARY)
  if own is not None and not np.array_equal(own, digest_bytes(sha256)):
    raise CheckpointError(
      f"checkpoint {step} of {store.directory} was trained over another "
      "vocabulary than this corpus has; build the corpus with --vocab=VOCAB of "
      "the corpus that it was trained on"
    )


def has_vectors_of(store: CheckpointStore, step: int, fingerprint: str) -> bool:
  """Returns whether a checkpoint has the vectors of a corpus version.

  The `fingerprint` of the version is a SHA-256 in hexadecimal.
  """
  if "vectors" not in store.items(step):
    return False
  own = store.restore(step, items=("loop",))["loop"].get(VECTORS_CORPUS)
  return own is not None and np.array_equal(own, digest_bytes(fingerprint))
