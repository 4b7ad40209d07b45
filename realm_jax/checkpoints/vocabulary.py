"""Which vocabulary a checkpoint's wordpieces are rows of.

Another vocabulary of the same size has the same shapes, so the checkpoint
keeps the digest of its own beside the trainer's place.
"""

import numpy as np
from jaxtyping import UInt8

from realm_jax.checkpoints.manager import CheckpointError, CheckpointStore

# Of the item "loop".
VOCABULARY = "vocabulary"


def vocabulary_digest(sha256: str) -> UInt8[np.ndarray, "32"]:
  """A hexadecimal sha256 as a checkpoint keeps it."""
  return np.frombuffer(bytes.fromhex(sha256), np.uint8)


def require_vocabulary(store: CheckpointStore, step: int, sha256: str) -> None:
  """Refuses a checkpoint that was trained over another vocabulary.

  One that no trainer wrote says nothing about it.

  Raises:
    CheckpointError: it was.
  """
  if "loop" not in store.items(step):
    return
  own = store.restore(step, items=("loop",))["loop"].get(VOCABULARY)
  if own is None:
    return
  if not np.array_equal(own, vocabulary_digest(sha256)):
    raise CheckpointError(
      f"checkpoint {step} of {store.directory} was trained over another "
      "vocabulary than this corpus has; build the corpus with --vocab=VOCAB of "
      "the corpus that it was trained on"
    )
