"""A role that only one process at a time has in a directory, such as trainer.

In a local directory, the process holds the kernel's lock on a file, which is
released however the process ends. Google's object store has no locks. There,
the process writes a lease and renews it while it runs, on the condition that
nobody else has written it since. The clocks of hosts may differ by minutes, so
a process that finds a lease watches, by its own clock, whether it changes
within a lifetime. Only a process of the same supervisor does not wait, because
it starts after the holder has ended.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
from absl import logging
from etils import epath

from realm_jax import supervisor
from realm_jax.errors import ExitCode, RealmError
from realm_jax.storage.access import StoreAccessError, StoreOutageError
from realm_jax.storage.local_disk import locked
from realm_jax.storage.paths import is_remote

# Seconds without a change after which a lease may be taken.
LIFETIME_SECONDS = 60.0
# Seconds between two renewals.
RENEWAL_SECONDS = 15.0


class SoleProcessError(RealmError):
  """Another process has the role, or has taken it over."""

  exit_code = ExitCode.LOST_ROLE


@contextlib.contextmanager
def sole_process(
  directory: epath.PathLike,
  role: str = "trainer",
  *,
  advice: str = "stop it, or give this one another MODEL_DIR",
) -> Iterator[Callable[[], None]]:
  """Takes a role in a directory, which is created if it is missing.

  On an object store, another process may take the role over if this one was cut
  off from the store, or stopped, for more than a lifetime. So this yields a
  function that checks the role. Call it from time to time, and before writing
  anything that the other process would also write. It raises a
  `SoleProcessError` if another process has taken the role, and a
  `StoreOutageError` if one may have taken it, because it could not be renewed
  for a lifetime. `advice` is the end of the error's message.

  Raises:
    SoleProcessError: Another process has the role.
    StoreAccessError: The directory is in a bucket of another store.
    OSError: The directory cannot be read or written.
  """
  path = epath.Path(directory)
  refused = f"{path} already has a {role} (%s); {advice}"
  with contextlib.ExitStack() as stack:
    if is_remote(path):
      lease = _Lease(path / f"{role}.lease", role)
      if holder := lease.take():
        raise SoleProcessError(refused % holder)
      stack.callback(lease.release)
      yield lease.check
      return
    path.mkdir(parents=True, exist_ok=True)
    lock = Path(path) / f"{role}.lock"
    try:
      stack.enter_context(locked(lock))
    except BlockingIOError:
      holder = lock.read_bytes()[:200].decode(errors="replace").strip()
      raise SoleProcessError(refused % (holder or "starting")) from None
    lock.write_text(_own_name())
    # A kernel lock is never lost.
    yield lambda: None


class _Lease:
  """The lease of a role in a directory of Google's object store."""

  def __init__(self, path: epath.Path, role: str):
    self._path, self._role = path, role
    if not str(path).startswith("gs://"):
      raise StoreAccessError(
        f"{path.parent} is in an object store whose writes have no "
        f"preconditions, so that it could get two {role}s; name a directory on "
        "gs:// or on a disk"
      )
    self._client, self._name = fsspec.url_to_fs(str(path))
    self._own = {
      "holder": _own_name(),
      "supervisor": os.environ.get(supervisor.VARIABLE, ""),
      "token": secrets.token_hex(8),
    }
    # Generation of this process's last write, and a time before its request.
    self._generation, self._renewed = "0", 0.0
    self._taken_by = ""
    # Only one thread at a time reads and writes the lease.
    self._lock = threading.Lock()
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._renew_to_the_end, daemon=True)

  def take(self) -> str:
    """Takes the role once it is free; returns "", or else the holder."""
    lease, generation = self._read()
    until = time.monotonic() + LIFETIME_SECONDS
    if not self._is_free(lease):
      logging.info(
        "%s is held (%s); waiting for up to %g seconds to see whether its "
        "holder runs",
        *(self._path, lease["holder"], LIFETIME_SECONDS),
      )
    while not self._is_free(lease) and (left := until - time.monotonic()) > 0:
      time.sleep(min(RENEWAL_SECONDS / 5, left))
      before, (lease, generation) = generation, self._read()
      if generation != before and not self._is_free(lease):
        return lease["holder"]
    self._write(generation)
    if not self._taken_by:
      self._thread.start()
    return self._taken_by

  def check(self) -> None:
    """Checks the role, as `sole_process` says."""
    # True after an outage, or if this process was stopped for long.
    if time.monotonic() - self._renewed > LIFETIME_SECONDS:
      self._renew()
    if self._taken_by:
      raise SoleProcessError(
        f"{self._path.parent} has another {self._role} now ({self._taken_by}), "
        f"since this process did not renew {self._path} for "
        f"{LIFETIME_SECONDS:g} seconds or more; this one ends, and the other "
        "goes on"
      )
    if (age := time.monotonic() - self._renewed) > LIFETIME_SECONDS:
      raise StoreOutageError(
        f"{self._path} could not be renewed for {age:.0f} seconds, and another "
        f"{self._role} may have taken its place; run the command again, once "
        "the store can be reached"
      )

  def release(self) -> None:
    """Gives the role up, unless another process has taken it."""
    self._ended.set()
    self._thread.join()
    try:
      if not self._taken_by:
        self._write(self._generation, released=True)
    except Exception as error:
      logging.warning("%s was not released: %s", self._path, error)

  def _renew_to_the_end(self) -> None:
    while not self._taken_by and not self._ended.wait(RENEWAL_SECONDS):
      self._renew()

  def _renew(self) -> None:
    """Writes the lease again, unless another process has taken it."""
    with self._lock:
      try:
        self._write(self._generation)
      except Exception as error:
        logging.warning("%s was not renewed: %s", self._path, error)

  def _write(self, generation: str, *, released: bool = False) -> None:
    """Replaces a generation of the lease, or finds out who has replaced it."""
    lease = {**self._own, "renewed": time.time(), "released": released}
    current: Mapping[str, Any] = self._own
    # Repeated if a response was lost, or somebody has removed the lease.
    while current.get("token", self._own["token"]) == self._own["token"]:
      now = time.monotonic()
      written = self._client.write_generation(
        self._name, json.dumps(lease).encode(), replaces=generation
      )
      if written is not None:
        self._generation, self._renewed = written, now
        return
      current, generation = self._read()
    self._taken_by = current["holder"]

  def _read(self) -> tuple[Mapping[str, Any], str]:
    """Returns the lease, which may be empty, and its generation."""
    content, generation = self._client.read_generation(self._name)
    if generation == "0":
      return {}, generation
    lease = {"holder": "unknown", "token": ""}
    with contextlib.suppress(ValueError, TypeError):
      lease |= json.loads(content)
    return lease, generation

  def _is_free(self, lease: Mapping[str, Any]) -> bool:
    """Returns whether a lease has no holder, or its holder has surely ended."""
    if not lease or lease.get("released") is True:
      return True
    supervisor_id = self._own["supervisor"]
    return bool(supervisor_id) and lease.get("supervisor") == supervisor_id


def _own_name() -> str:
  return f"process {os.getpid()} on {socket.gethostname()}"
