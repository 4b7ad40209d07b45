"""One trainer for a MODEL_DIR."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator

from etils import epath


class RunLockError(ValueError):
  """Another trainer writes to this MODEL_DIR."""


@contextlib.contextmanager
def run_lock(model_dir: epath.PathLike) -> Iterator[None]:
  """Holds MODEL_DIR for this process; the lock dies with the process.

  The kernel drops the lock however the process ends, so a killed trainer
  never stands in the way of its successor. Object stores have no locks: there
  the launcher must see to it that one trainer runs.

  Raises:
    RunLockError: another process holds it.
  """
  path = epath.Path(model_dir)
  if "://" in str(model_dir):
    yield
    return
  path.mkdir(parents=True, exist_ok=True)
  lock = path / "trainer.lock"
  descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      holder = os.read(descriptor, 200).decode(errors="replace").strip()
      raise RunLockError(
        f"{path} already has a trainer ({holder or 'starting'}); stop it, or "
        "give this one another MODEL_DIR"
      ) from None
    os.truncate(descriptor, 0)
    os.write(
      descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode()
    )
    yield
  finally:
    os.close(descriptor)
