"""Who has which generation loaded, so that no builder removes it."""

import json
import os
import secrets
import socket
import time
from collections.abc import Collection

from absl import logging
from etils import epath

from realm_jax.generations import layout


class Lease:
  """One process's claim on the generations that it has loaded.

  A lease that is not renewed runs out, so a killed process holds nothing for
  long.

  Args:
    generations_dir: where generations lie.
    lifetime_seconds: how long a lease lasts without being renewed.
  """

  def __init__(
    self, generations_dir: epath.PathLike, *, lifetime_seconds: float = 600.0
  ):
    owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    self._path = epath.Path(generations_dir) / layout.LEASES / f"{owner}.json"
    self._lifetime_seconds = lifetime_seconds
    self._steps: frozenset[int] = frozenset()
    self._renewed = -lifetime_seconds

  def hold(self, steps: Collection[int]) -> None:
    """Claims exactly these steps; writes only when it must.

    Raises:
      OSError: the lease cannot be written.
    """
    steps = frozenset(steps)
    age = time.monotonic() - self._renewed
    if steps == self._steps and (not steps or age < self._lifetime_seconds / 4):
      return
    self._path.parent.mkdir(parents=True, exist_ok=True)
    # A reader that meets half a lease would take it for none.
    new = self._path.with_name(f".{self._path.name}")
    new.write_text(
      json.dumps(
        {
          "steps": sorted(steps),
          "expires": time.time() + self._lifetime_seconds,
        }
      )
    )
    new.replace(self._path)
    self._steps, self._renewed = steps, time.monotonic()

  def release(self) -> None:
    """Gives everything back."""
    try:
      self._path.unlink(missing_ok=True)
    except OSError as error:
      logging.warning("%s stays until it runs out: %s", self._path, error)
    self._steps = frozenset()


def leased_steps(generations_dir: epath.PathLike) -> set[int]:
  """The steps that anyone holds; leases that ran out are removed."""
  directory = epath.Path(generations_dir) / layout.LEASES
  steps: set[int] = set()
  if not directory.exists():
    return steps
  for path in directory.glob("*.json"):
    try:
      lease = json.loads(path.read_text())
      if lease["expires"] > time.time():
        steps.update(lease["steps"])
      else:
        path.unlink(missing_ok=True)
    except FileNotFoundError:
      continue
    except (ValueError, KeyError, TypeError) as error:
      logging.warning("%s is no lease (%r) and holds nothing", path, error)
  return steps
