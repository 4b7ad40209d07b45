"""The feedback log: lists that a service has retrieved, and their rewards.

A folder has the files log-00000.jsonl, log-00001.jsonl and so on, to which one
service appends. A line is a served list,

    {"list": ID, "time": 1.7e9, "query": TEXT, "blocks": [INT64],
     "hashes": [INT64], "scores": [FLOAT], "shown": [PLACE],
     "temperature": FLOAT or null, "checkpoint": STEP, "snapshot": STEP}

or the rewards of a list: `{"rewards": [FLOAT] or FLOAT, "of": ID, "time": …}`.
`blocks` are the candidates with their scores, best first, and `shown` has the
positions of the blocks that the client got, in the order shown. With a
temperature, this order was drawn from scores / temperature (Plackett–Luce), so
its probability can be computed from the line. Clients send only rewards and the
ID of a list.
"""

import base64
import collections
import dataclasses
import errno
import hashlib
import hmac
import io
import json
import os
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Float, Int

from realm_jax.errors import RealmError
from realm_jax.storage.paths import is_remote

# Rewards are between −1 and 1, so that no client outweighs all others.
MAX_REWARD = 1.0
# Number of lists whose rewards a service remembers, to recognize repetitions.
_NUM_RECENT = 100_000
_FILE_BYTES = 64 << 20
_NAME = "log-{:05}.jsonl"
_KEY, _KEY_BYTES = "key", 32

Rewards = float | Sequence[float]


class FeedbackError(RealmError):
  """Feedback is malformed, or not for a list of this service."""


@dataclasses.dataclass(frozen=True)
class Served:
  """A list that was served for a query.

  Attributes:
    query: Text of the query.
    blocks: Ids of the candidates.
    hashes: Content hashes of the candidates; 0 for a text that is not in the
      corpus.
    scores: f(x, z) of the candidates, times the retriever's scale.
    shown: Positions, among the candidates, of the blocks that the client got.
    temperature: Temperature with which the order was drawn; None for the order
      of scores.
    checkpoint, snapshot: Steps of the checkpoint and the snapshot.
  """

  query: str
  blocks: Int[np.ndarray, " n"]
  hashes: Int[np.ndarray, " n"]
  scores: Float[np.ndarray, " n"]
  shown: Int[np.ndarray, " k"]
  temperature: float | None
  checkpoint: int
  snapshot: int


def log_files(directory: epath.PathLike) -> list[Path]:
  """Returns the files of a log, oldest first."""
  return sorted(Path(directory).glob(_NAME.replace("{:05}", "*")))


def require_disk(directory: epath.PathLike) -> None:
  """Raises a `RealmError` for a folder in a bucket, which cannot append."""
  if is_remote(epath.Path(directory)):
    raise RealmError(
      f"a feedback log cannot grow in a bucket, as {directory} is; give "
      "--feedback_dir=FOLDER on a disk"
    )


def checked_rewards(rewards: Any) -> Rewards:
  """Checks rewards: a number, or one for each passage.

  Raises:
    FeedbackError: They are neither, or out of bounds.
  """
  several = rewards if isinstance(rewards, list) else [rewards]
  for reward in several:
    is_number = isinstance(reward, int | float) and type(reward) is not bool
    if not (is_number and abs(reward) <= MAX_REWARD):
      # NaN also fails this comparison.
      shown = f"{reward!r:.50}"
      raise FeedbackError(
        f"a reward is {shown}; want numbers from {-MAX_REWARD:g} to "
        f"{MAX_REWARD:g}, one for the list, or one for each passage of it"
      )
  return rewards


class FeedbackLog:
  """The log to which a service appends, from any of its threads.

  Request IDs are signed, so the service need not remember them, and accepts
  rewards of lists that were served before a restart.

  Args:
    directory: Folder of the log, on a disk.
    max_bytes: Maximum size of the log.

  Attributes:
    num_lists, num_rewards: Numbers of lines that this service has written.

  Raises:
    RealmError: The folder is in a bucket.
  """

  def __init__(self, directory: epath.PathLike, *, max_bytes: int = 16 << 30):
    require_disk(directory)
    self.directory = Path(directory)
    self.directory.mkdir(parents=True, exist_ok=True)
    self._key = self._read_key()
    files = log_files(self.directory)
    self._bytes_left = max_bytes - sum(file.stat().st_size for file in files)
    # After a crash, the last line of the previous file may be incomplete.
    self._number = int(files[-1].stem.rpartition("-")[2]) + 1 if files else 0
    self._file: io.FileIO | None = None
    self._lock = threading.Lock()
    self._recent = collections.OrderedDict[str, Rewards]()
    # Numbers of passages of recent lists.
    self._lengths = collections.OrderedDict[str, int]()
    self.num_lists = self.num_rewards = 0

  def _read_key(self) -> bytes:
    path = self.directory / _KEY
    # A killed service may have left an incomplete key, which was never used.
    if path.exists() and len(key := path.read_bytes()) == _KEY_BYTES:
      return key
    key = secrets.token_bytes(_KEY_BYTES)
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "wb") as opened:
      opened.write(key)
    return key

  @property
  def is_full(self) -> bool:
    """Whether the log has reached its maximum size."""
    return self._bytes_left <= 0

  def close(self) -> None:
    """Closes the file."""
    with self._lock:
      self._close()

  def _close(self) -> None:
    if self._file is not None:
      os.fsync(self._file.fileno())
      self._file.close()
    self._file = None

  def new_id(self) -> str:
    """Returns the request ID of a list that will be served."""
    nonce = secrets.token_urlsafe(12)
    return f"{nonce}.{self._proof(nonce)}"

  def _proof(self, nonce: str) -> str:
    digest = hmac.digest(self._key, nonce.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest[:12]).decode()

  def add_lists(self, ids: Sequence[str], served: Sequence[Served]) -> None:
    """Appends lists. They are synced to disk together with later rewards.

    If the disk is full, the lists are served nevertheless, but not learned
    from.
    """
    now, lines = round(time.time(), 3), list[dict[str, Any]]()
    for name, one in zip(ids, served, strict=True):
      arrays = {
        name: getattr(one, name).tolist()
        for name in ("blocks", "hashes", "scores", "shown")
      }
      lines.append({"list": name, "time": now, **vars(one), **arrays})
    with self._lock:
      for name, one in zip(ids, served, strict=True):
        self._lengths[name] = len(one.shown)
      while len(self._lengths) > _NUM_RECENT:
        self._lengths.popitem(last=False)
      try:
        self.num_lists += self._write(lines)
      except OSError as error:
        logging.log_every_n_seconds(
          *(logging.ERROR, "%s: lists are not logged: %s", 60),
          *(self.directory, error),
        )

  def add_rewards(self, rewards: Sequence[tuple[str, Rewards]]) -> int:
    """Appends rewards of lists, which are on the disk when this returns.

    Only the first rewards of a list count, so a request can be sent again.
    Repetitions that this service remembers are not written.

    Returns:
      The number of rewards that were new.

    Raises:
      FeedbackError: An ID is not from this service, a recent list has another
        number of passages, or the log is full. Nothing was written.
      OSError: The disk is full or broken. The request can be sent again.
    """
    for name, _ in rewards:
      nonce, _, proof = name.partition(".")
      if not hmac.compare_digest(proof.encode(), self._proof(nonce).encode()):
        raise FeedbackError(
          f"no list of this service has the request_id {name!r:.60}; send one "
          "that /retrieve has given"
        )
    with self._lock:
      if self.is_full:
        raise FeedbackError(
          f"the feedback log {self.directory} is full; move it away, or raise "
          "--max_feedback_gib"
        )
      new = dict[str, Rewards]()
      for name, sent in rewards:
        number = self._lengths.get(name)
        if isinstance(sent, list) and number not in (None, len(sent)):
          raise FeedbackError(
            f"{len(sent)} rewards for the request_id {name!r:.60}, whose list "
            f"has {number} passages; send one for each passage, or one number"
          )
        if name not in self._recent:
          new.setdefault(name, sent)
      now = round(time.time(), 3)
      lines = [{"rewards": x, "of": n, "time": now} for n, x in new.items()]
      self.num_rewards += self._write(lines, sync=True)
      self._recent.update(new)
      while len(self._recent) > _NUM_RECENT:
        self._recent.popitem(last=False)
    return len(new)

  def _write(
    self, lines: Sequence[dict[str, Any]], *, sync: bool = False
  ) -> int:
    """Writes lines and flushes them for readers; returns their number."""
    if not lines or self.is_full:
      return 0
    text = "".join(json.dumps(one, allow_nan=False) + "\n" for one in lines)
    if self._file is not None and self._file.tell() > _FILE_BYTES:
      self._close()
    try:
      if self._file is None:
        path = self.directory / _NAME.format(self._number)
        self._number += 1
        # Unbuffered, so that a failed write is not repeated later.
        self._file = path.open("xb", buffering=0)
      written = self._file.write(content := text.encode())
      if written < len(content):
        raise OSError(errno.ENOSPC, "No space left on device", self._file.name)
      if sync:
        os.fsync(self._file.fileno())
    except OSError:
      # The next line starts a new file, instead of following a partial line.
      file, self._file = self._file, None
      if file is not None:
        file.close()
      raise
    self._bytes_left -= written
    return len(lines)


def drawn_order(
  scores: Float[np.ndarray, "b n"],
  *,
  temperature: float,
  k: int,
  generator: np.random.Generator,
) -> Int[np.ndarray, "b k"]:
  """Draws k positions for each query in order, without replacement.

  The distribution is Plackett–Luce with scores / temperature: the k greatest
  after adding Gumbel noise (Kool et al. 2019, arXiv 1903.06059).
  """
  noisy = scores / temperature + generator.gumbel(size=scores.shape)
  return np.argsort(-noisy, axis=1)[:, :k]
