"""The digest of the vocabulary that a checkpoint was trained with.

Another vocabulary of the same size has the same shapes, so the item "loop" of
a checkpoint keeps the digest.
"""

import numpy as np
from jaxtyping import UInt8

from realm_jax.checkpoints.manager import CheckpointError, CheckpointStore

# The name of the digest in the item "loop".
VOCABULARY = "vocabulary"


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
