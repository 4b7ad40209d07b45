"""Saved scores of a served reader: a cache on this host, and records of steps.

The cache, an SQLite file, has the scores by model and text: if another epoch
retrieves the same blocks, they cost nothing. MODEL_DIR has the scores of each
step and process, including which are missing, written before the step runs:

    served_reader/<step>.<process>.npz

A resumed run uses these records, and so repeats its steps bit for bit, although
a server may answer slightly differently the second time. Records before the
oldest checkpoint are removed.
"""

import contextlib
import io
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from etils import epath
from jaxtyping import Float32

from realm_jax.errors import RealmError
from realm_jax.storage.atomic import atomic_file
from realm_jax.storage.paths import list_names, read_bytes
from realm_jax.training.stages.stage import StepOnHost

FOLDER = "served_reader"
# Number of steps between removals of old records.
_PRUNE_EVERY_STEPS = 32


class ScoreCache:
  """Scores by the digest of model and text, in a file on this host."""

  def __init__(self, database: sqlite3.Connection):
    self._database = database

  @classmethod
  @contextlib.contextmanager
  def opened(cls, path: Path) -> Iterator["ScoreCache"]:
    """Opens a file, which several processes may use at once.

    Raises:
      RealmError: The file is not a SQLite database, or is not writable.
    """
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      with contextlib.closing(
        sqlite3.connect(path, timeout=60.0, isolation_level=None)
      ) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute(
          "CREATE TABLE IF NOT EXISTS scores "
          "(key BLOB PRIMARY KEY, total REAL, num_tokens INTEGER) WITHOUT ROWID"
        )
        yield cls(database)
    except sqlite3.Error as error:
      raise RealmError(
        f"{path}: {error}; remove it, free some space, or set SCORE_CACHE to "
        "another file on a local disk"
      ) from error

  def known(self, keys: Sequence[bytes]) -> dict[bytes, tuple[float, int]]:
    """Returns the cached sums and numbers of tokens, by key."""
    query = "SELECT total, num_tokens FROM scores WHERE key = ?"
    rows = {
      key: self._database.execute(query, [key]).fetchone() for key in {*keys}
    }
    return {key: row for key, row in rows.items() if row is not None}

  def add(self, key: bytes, total: float, num_tokens: int) -> None:
    """Saves a score at once, so a restarted run does not pay for it again."""
    self._database.execute(
      "INSERT OR REPLACE INTO scores VALUES (?, ?, ?)",
      (key, total, num_tokens),
    )


class StepScores(NamedTuple):
  """The file in MODEL_DIR with a step's scores of this process."""

  model_dir: epath.Path
  step: int
  process: int

  @classmethod
  def of(cls, step: StepOnHost) -> "StepScores":
    """Returns the file of a step for this process."""
    return cls(epath.Path(step.model_dir), step.step, jax.process_index())

  @property
  def _path(self) -> epath.Path:
    return self.model_dir / FOLDER / f"{self.step:08d}.{self.process}.npz"

  def read(self, digest: bytes) -> Float32[np.ndarray, " n"] | None:
    """Returns the recorded scores, if they are for the same texts."""
    try:
      content = read_bytes(self._path)
    except FileNotFoundError:
      return None
    with np.load(io.BytesIO(content), allow_pickle=False) as record:
      same = record["digest"].tobytes() == digest
      return record["log_likelihoods"] if same else None

  def write(self, digest: bytes, scores: Float32[np.ndarray, " n"]) -> None:
    """Writes the scores, and occasionally removes old ones."""
    with atomic_file(self._path) as path, path.open("wb") as file:
      np.savez(
        file, digest=np.frombuffer(digest, np.uint8), log_likelihoods=scores
      )
    if self.step % _PRUNE_EVERY_STEPS:
      return
    names = list_names(self.model_dir / "checkpoints")
    kept = [int(name) for name in names if name.isdecimal()]
    # Checkpoint 0 always stays, so it does not count.
    oldest = min((one for one in kept if one), default=0)
    for name in list_names(self._path.parent):
      step, _, rest = name.partition(".")
      is_own = step.isdecimal() and rest == f"{self.process}.npz"
      if is_own and int(step) < oldest:
        (self._path.parent / name).unlink(missing_ok=True)
