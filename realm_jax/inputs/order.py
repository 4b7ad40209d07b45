"""The order of a random-access source, as a pure function of position.

Position p of the stream is record `permutation(seed, p // N)[p % N]`. The
permutation is a Feistel network with cycle walking (Black and Rogaway 2002,
"Ciphers with arbitrary finite domains"). It takes no memory, whatever N is,
and a run resumes anywhere at once.
"""

import numpy as np
from jaxtyping import Int, UInt64

_ROUNDS = 6
# Fewer bits would give too few distinct permutations of tiny sources.
_MIN_HALF_BITS = 3


def _mix(words: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
  """Scatters all bits, as the finaliser of splitmix64 (Steele et al. 2014)."""
  words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return words ^ (words >> np.uint64(31))


def _permute(
  values: UInt64[np.ndarray, "n"], keys: UInt64[np.ndarray, "n"], size: int
) -> UInt64[np.ndarray, "n"]:
  """Maps each value below `size` by the permutation of its key."""
  half = np.uint64(
    max(_MIN_HALF_BITS, (max(size - 1, 1).bit_length() + 1) // 2)
  )
  mask = (np.uint64(1) << half) - np.uint64(1)
  values = values.copy()
  walking = np.arange(len(values))
  # The network permutes 0 … 4^half − 1. A value that leaves 0 … size − 1 is
  # mapped again until it is back, which keeps the map one to one.
  while len(walking):
    left, right = values[walking] >> half, values[walking] & mask
    for round_key in range(1, _ROUNDS + 1):
      scattered = _mix(
        keys[walking] + right * np.uint64(16) + np.uint64(round_key)
      )
      left, right = right, left ^ (scattered & mask)
    values[walking] = (left << half) | right
    walking = walking[values[walking] >= size]
  return values


def record_indices(
  positions: Int[np.ndarray, "n"], *, size: int, seed: int, shuffle: bool = True
) -> Int[np.ndarray, "n"]:
  """Returns the records at positions, from 0, of an endless stream.

  Position p is in epoch p // `size`. Every epoch has its own order; without
  `shuffle`, all keep the source's.
  """
  epochs, within = np.divmod(np.asarray(positions, np.int64), size)
  if not shuffle:
    return within
  run_key = _mix(np.array([seed % 2**64], np.uint64))
  keys = _mix(run_key + epochs.astype(np.uint64))
  return _permute(within.astype(np.uint64), keys, size).astype(np.int64)


def position_hashes(
  positions: Int[np.ndarray, "n"], *, seed: int
) -> UInt64[np.ndarray, "n"]:
  """Returns a hash of the seed and of each position."""
  run_key = _mix(np.array([seed % 2**64], np.uint64))
  return _mix(run_key + positions.astype(np.uint64))
