"""Who has which generation loaded, so that no builder removes it."""

import json
import os
import secrets
import socket
import time
from collections.abc import Collection, Iterator

from absl import logging
from etils import epath

from realm_jax.generations.store import layout


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
    is_young = age < self._lifetime_seconds / 4
    if steps == self._steps and (
      not steps or (is_young and self._path.exists())
    ):
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
  steps: set[int] = set()
  for path, held in _leases(generations_dir):
    if held is None:
      path.unlink(missing_ok=True)
    else:
      steps.update(held)
  return steps


def holders(generations_dir: epath.PathLike) -> dict[int, list[str]]:
  """Who holds each step: the host, the process and a word of its own."""
  owners: dict[int, list[str]] = {}
  for path, held in _leases(generations_dir):
    for step in held or ():
      owners.setdefault(step, []).append(path.stem)
  return {step: sorted(names) for step, names in owners.items()}


def _leases(
  generations_dir: epath.PathLike,
) -> Iterator[tuple[epath.Path, list[int] | None]]:
  """Each lease and the steps it holds; None for one that ran out."""
  directory = epath.Path(generations_dir) / layout.LEASES
  if not directory.exists():
    return
  for path in directory.glob("*.json"):
    try:
      lease = json.loads(path.read_text())
      is_held = lease["expires"] > time.time()
      yield path, [int(step) for step in lease["steps"]] if is_held else None
    except FileNotFoundError:
      continue
    except (ValueError, KeyError, TypeError) as error:
      logging.warning("%s is no lease (%r) and holds nothing", path, error)
