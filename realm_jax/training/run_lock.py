"""A lock that allows a MODEL_DIR one trainer."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator

from etils import epath

from realm_jax.files.remote import is_remote


class RunLockError(ValueError):
  """Another trainer writes to this MODEL_DIR."""


@contextlib.contextmanager
def run_lock(model_dir: epath.PathLike) -> Iterator[None]:
  """Locks MODEL_DIR for this process.

  The kernel releases the lock however the process ends, so a killed trainer
  never blocks its successor. Object stores have no locks: on them the launcher
  must ensure that only one trainer runs.

  Raises:
    RunLockError: Another process holds the lock.
  """
  path = epath.Path(model_dir)
  if is_remote(model_dir):
    yield
    return
  path.mkdir(parents=True, exist_ok=True)
  lock = path / "trainer.lock"
  with lock.open("a") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      holder = lock.read_bytes()[:200].decode(errors="replace").strip()
      raise RunLockError(
        f"{path} already has a trainer ({holder or 'starting'}); stop it, or "
        "give this one another MODEL_DIR"
      ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    yield
