"""Leases: which process has which generations loaded, so that they stay."""

import json
import os
import secrets
import socket
import time
from collections.abc import Collection, Iterator

from absl import logging
from etils import epath

from realm_jax.files.json_file import whole_text_file
from realm_jax.files.object_store import listing
from realm_jax.files.object_store.remote import read_text
from realm_jax.generations.store import layout


class Lease:
  """One process's lease on the generations that it has loaded.

  It expires after `lifetime_seconds` unless it is renewed, so a killed process
  soon holds none.
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
    """Leases exactly these steps, and renews the lease when it is old.

    Raises:
      OSError: The lease cannot be written.
    """
    steps = frozenset(steps)
    age = time.monotonic() - self._renewed
    is_young = (
      age < self._lifetime_seconds / 4
      and listing.version_of(self._path) is not None
    )
    if steps == self._steps and (is_young or not steps):
      return
    lease = {"steps": sorted(steps), "seconds": self._lifetime_seconds}
    with whole_text_file(self._path) as file:
      file.write(json.dumps(lease))
    self._steps, self._renewed = steps, time.monotonic()

  def release(self) -> None:
    """Ends the lease."""
    try:
      self._path.unlink(missing_ok=True)
    except OSError as error:
      logging.warning("%s stays until it expires: %s", self._path, error)
    self._steps = frozenset()


def leased_steps(generations_dir: epath.PathLike) -> set[int]:
  """Returns the steps that are leased, and removes expired leases."""
  steps: set[int] = set()
  for path, held in _leases(generations_dir):
    if held is None:
      path.unlink(missing_ok=True)
    else:
      steps.update(held)
  return steps


def holders(generations_dir: epath.PathLike) -> dict[int, list[str]]:
  """Returns the holders of each step, as `host-process-random`."""
  owners: dict[int, list[str]] = {}
  for path, held in _leases(generations_dir):
    for step in held or ():
      owners.setdefault(step, []).append(path.stem)
  return {step: sorted(names) for step, names in owners.items()}


def _leases(
  generations_dir: epath.PathLike,
) -> Iterator[tuple[epath.Path, list[int] | None]]:
  """Yields each lease and its steps; None for an expired one.

  The clocks of hosts may be minutes apart, so the age of a lease is the time
  between two writes by the storage's own clock: that of the lease, and one now.
  """
  directory = epath.Path(generations_dir) / layout.LEASES
  names = [name for name in listing.names_in(directory) if _is_lease(name)]
  now = _storage_time_now(directory) if names else None
  for path in (directory / name for name in names):
    try:
      lease = json.loads(read_text(path))
      steps, seconds = [int(s) for s in lease["steps"]], float(lease["seconds"])
    except FileNotFoundError:
      continue
    except (ValueError, KeyError, TypeError) as error:
      logging.warning("%s is not a lease (%r) and is ignored", path, error)
      continue
    written = listing.storage_time(path)
    if written is not None and now is not None:
      yield path, steps if now - written < seconds else None


def _is_lease(name: str) -> bool:
  return name.endswith(".json") and not name.startswith(".")


def _storage_time_now(directory: epath.Path) -> float | None:
  """Returns the storage's time, from a file that is written for it."""
  probe = directory / f".clock-{secrets.token_hex(4)}"
  with whole_text_file(probe) as file:
    file.write("")
  try:
    return listing.storage_time(probe)
  finally:
    probe.unlink(missing_ok=True)
