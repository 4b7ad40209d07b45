"""A role that one process at a time has in a directory, such as its trainer.

In a local directory the kernel locks a file, and releases it however the
process ends. An object store has no locks, and not every server of the protocol
honours conditions on a write. There the process writes a lease, waits for a
moment and reads it back: of several that write at the same time, the last wins.
It renews the lease while it runs. The clocks of hosts may differ by minutes, so
whoever finds a lease observes, by a clock of its own, whether it changes within
a lifetime.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import logging
from etils import epath

from realm_jax.exit_codes import ExitCode
from realm_jax.storage.json_files import write_json
from realm_jax.storage.local_disk import locked
from realm_jax.storage.paths import is_remote, read_bytes

# Seconds without a change after which a lease may be taken.
LIFETIME_SECONDS = 60.0
# Seconds between two renewals.
RENEWAL_SECONDS = 15.0
# Seconds between writing a lease and reading it back: longer than reading and
# writing it takes.
SETTLING_SECONDS = 2.0


class SoleProcessError(ValueError):
  """Another process has the role, or has taken it."""

  exit_code = ExitCode.LOST_ROLE


class SoleProcess:
  """The role of this process, which a lock of the kernel protects, if any."""

  def check(self) -> None:
    """Raises `SoleProcessError` if another process has taken the role."""


@contextlib.contextmanager
def sole_process(
  directory: epath.PathLike,
  role: str = "trainer",
  *,
  advice: str = "stop it, or give this one another MODEL_DIR",
) -> Iterator[SoleProcess]:
  """Gives this process a role in a directory, which is made if need be.

  On an object store another process may take the role from one that was cut off
  from the store, or stopped, for more than a lifetime. So `check` must be
  called from time to time, and before anything is written that the other would
  write, too. The `advice` ends the error's message.

  Raises:
    SoleProcessError: Another process has the role.
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
      yield lease
      return
    path.mkdir(parents=True, exist_ok=True)
    lock = Path(path) / f"{role}.lock"
    try:
      stack.enter_context(locked(lock))
    except BlockingIOError:
      holder = lock.read_bytes()[:200].decode(errors="replace").strip()
      raise SoleProcessError(refused % (holder or "starting")) from None
    lock.write_text(_own_name())
    yield SoleProcess()


class _Lease(SoleProcess):
  """The lease of a role in a directory of an object store."""

  def __init__(self, path: epath.Path, role: str):
    self._path, self._role = path, role
    self._own = {
      "holder": _own_name(),
      "process": os.getpid(),
      "started": _started(os.getpid()),
      "token": secrets.token_hex(8),
    }
    # When the store was asked for the last time, whether it answered or not.
    self._asked = 0.0
    self._taken_by = ""
    # One thread at a time reads the lease and writes it.
    self._lock = threading.Lock()
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._renew_to_the_end, daemon=True)

  def take(self) -> str:
    """Takes the role once it is free; returns who has it otherwise, or ""."""
    found, until = self._read(), time.monotonic() + LIFETIME_SECONDS
    if not _is_free(found):
      logging.info(
        "%s is held (%s); waiting for up to %g seconds to see whether its "
        "holder runs",
        *(self._path, found["holder"], LIFETIME_SECONDS),
      )
    while not _is_free(found) and (left := until - time.monotonic()) > 0:
      time.sleep(min(RENEWAL_SECONDS / 5, left))
      before, found = found, self._read()
      if found != before and not _is_free(found):
        return found["holder"]
    self._write()
    time.sleep(SETTLING_SECONDS)
    found = self._read()
    if not self._is_own(found):
      return found.get("holder", "unknown")
    self._asked = time.monotonic()
    self._thread.start()
    return ""

  def check(self) -> None:
    # A process that was stopped for long must not go on as if it had not been.
    age = time.monotonic() - self._asked
    if age > LIFETIME_SECONDS and not self._lock.locked():
      self._renew()
    if self._taken_by:
      raise SoleProcessError(
        f"{self._path.parent} has another {self._role} now ({self._taken_by}), "
        f"since this process did not renew {self._path} for "
        f"{LIFETIME_SECONDS:g} seconds or more; this one ends, and the other "
        "goes on"
      )

  def release(self) -> None:
    """Gives the role up, unless another process has taken it."""
    self._ended.set()
    self._thread.join()
    try:
      if not self._taken_by and self._is_own(self._read()):
        # A holder that was cut off must find that another one has had the role.
        self._write(released=True)
    except Exception as error:
      logging.warning("%s was not released: %s", self._path, error)

  def _renew_to_the_end(self) -> None:
    while not self._taken_by and not self._ended.wait(RENEWAL_SECONDS):
      self._renew()

  def _renew(self) -> None:
    """Writes the lease again, unless it is another's by now."""
    with self._lock:
      try:
        found = self._read()
        if found and not self._is_own(found):
          self._taken_by = found["holder"]
        else:
          self._write()
      # While the store cannot be reached, nothing can be written to it either.
      except Exception as error:
        logging.warning("%s was not renewed: %s", self._path, error)
      self._asked = time.monotonic()

  def _read(self) -> Mapping[str, Any]:
    """Returns what the lease says; nothing if there is none."""
    try:
      return {"holder": "unknown", **json.loads(read_bytes(self._path))}
    except FileNotFoundError:
      return {}
    except (ValueError, TypeError):
      return {"holder": "unknown"}

  def _write(self, *, released: bool = False) -> None:
    lease = {**self._own, "renewed": time.time(), "released": released}
    write_json(self._path, lease)

  def _is_own(self, lease: Mapping[str, Any]) -> bool:
    return lease.get("token") == self._own["token"]


def _is_free(lease: Mapping[str, Any]) -> bool:
  """Returns whether a lease has no holder, or one of here that has ended."""
  if not lease or lease.get("released") is True:
    return True
  # Empty where the holder's host is not known, or has no /proc.
  machine, _, _ = str(lease.get("started") or "").rpartition(" ")
  is_here = bool(machine) and machine == _machine()
  return is_here and _started(lease.get("process")) != lease["started"]


def _own_name() -> str:
  return f"process {os.getpid()} on {socket.gethostname()}"


def _machine() -> str:
  """Returns a name that processes share if they see each other's ids, or ""."""
  with contextlib.suppress(OSError):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{socket.gethostname()}/{boot}/{namespace}"
  return ""


def _started(process: object) -> str:
  """Returns where and when, in ticks, a process started; "" if it has ended."""
  with contextlib.suppress(OSError):
    text = Path(f"/proc/{process}/stat").read_text()
    state, *fields = text.rpartition(")")[2].split()
    # A killed process is a zombie until its parent reaps it.
    if state not in "ZX":
      return f"{_machine()} {fields[18]}"
  return ""
