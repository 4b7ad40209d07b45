"""Agreements: decisions that are the same in all processes of a run.

They use the key-value store of jax's coordination service, between hosts, and
no collectives on the devices.
"""

import collections
import dataclasses
import importlib.metadata
import itertools
import json
import pkgutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from realm_jax.errors import RealmError
from realm_jax.partitioning import processes
from realm_jax.partitioning.processes import LostProcessError, ProcessesError
from realm_jax.storage.access import exit_code_of

T = TypeVar("T")
# A value that JSON can hold.
Fact = Any

# Time that a call waits for a key before checking whether a process has failed.
_POLL_SECONDS = 1.0
_TIMED_OUT = ("DEADLINE_EXCEEDED", "NOT_FOUND")
# Numbers of agreements that this process has opened, by name.
_opened: collections.Counter[str] = collections.Counter()
_PROJECT_DIR = Path(__file__).resolve().parents[2]
# Directories may differ between hosts; Flax adds the other fields.
_MAY_DIFFER = frozenset(
  {"corpus_dir", "pretraining_corpus_dir", "question_files", "parent", "name"}
)


class Agreement:
  """A sequence of decisions that all processes of a run make together.

  Process 0 decides, from the facts of all processes, and the others read its
  decision. All processes must open the same agreements, and make the same
  decisions, in the same order, each from one thread. With a single process, a
  decision is just a function call.

  Args:
    name: Name of the sequence; each thread needs its own.
    while_waiting: Function that is called about once a second during waits.
  """

  def __init__(
    self, name: str, *, while_waiting: Callable[[], object] = lambda: None
  ):
    self._while_waiting = while_waiting
    # A process may train one run after another.
    self._prefix = f"{processes.PREFIX}/{name}/{_opened[name]}"
    _opened[name] += 1
    self._numbers = itertools.count()
    self._store = processes.store()
    self.index, self.count = jax.process_index(), jax.process_count()
    # Whether this is process 0, which decides.
    self.is_leader = self.index == 0

  def exchange(
    self, what: str, fact: Fact, rule: Callable[[Sequence[Fact]], Fact]
  ) -> Fact:
    """Returns the decision of process 0, `rule` of the facts of all processes.

    Facts and decisions are JSON values of at most a megabyte. `what` is the
    name of the decision, to detect processes that are out of step.

    Raises:
      ProcessesError: A process has failed, or makes another decision.
    """
    if self.count == 1:
      return rule([fact])
    number = next(self._numbers)
    folder = f"{self._prefix}/{number}"
    own = json.dumps({"what": what, "fact": fact})
    if not self.is_leader:
      self._store.key_value_set(f"{folder}/{self.index}", own)
      return json.loads(self._wait_for(f"{folder}/decision"))
    others = (self._wait_for(f"{folder}/{i}") for i in range(1, self.count))
    entries = [json.loads(text) for text in (own, *others)]
    names = {entry["what"] for entry in entries}
    if names != {what}:
      raise ProcessesError(f"the processes are out of step: {sorted(names)}")
    decision = json.dumps(rule([entry["fact"] for entry in entries]))
    self._store.key_value_set(f"{folder}/decision", decision)
    # Processes that make this decision have read the previous one.
    if number:
      self._store.key_value_delete(f"{self._prefix}/{number - 1}")
    return json.loads(decision)

  def on_process_0(self, what: str, compute: Callable[[], T]) -> T:
    """Returns, on all processes, a JSON value that process 0 computes.

    If it raises a `RealmError`, all processes raise it.
    """
    if self.count == 1:
      return compute()
    outcome = _outcome(compute) if self.is_leader else None
    return _value(self.exchange(what, outcome, lambda facts: facts[0]))

  def on_all_processes(self, what: str, compute: Callable[[], T]) -> T:
    """Returns the value that this process computes, if all processes succeed.

    If one raises a `RealmError`, all raise it.
    """
    if self.count == 1:
      return compute()
    computed: list[T] = []
    own_outcome = _outcome(lambda: computed.append(compute()))
    for process, outcome in enumerate(self.exchange(what, own_outcome, list)):
      _value(outcome, f"process {process}: ")
    return computed[0]

  def require_same(self, settings: Mapping[str, Any]) -> None:
    """Checks that all processes have the same settings and program.

    Settings are keyed by what error messages call them. Dataclasses are
    compared field by field, recursively.

    Raises:
      ProcessesError: A value differs.
    """
    if self.count == 1:
      return
    first, *others = self.exchange("what runs", description_of(settings), list)
    for process, values in enumerate(others, 1):
      for name in first:
        if (value := values.get(name)) != first[name]:
          raise ProcessesError(
            f"{name} is {value} in process {process}, and {first[name]} in "
            "process 0; start all processes with the same"
          )

  def stop_event(self, event: threading.Event) -> "StopEvent":
    """Returns an event that is set in all processes once it is set in one.

    `event` is this process's event, which SIGTERM sets.
    """
    return StopEvent(event, f"{self._prefix}/stop")

  def _wait_for(self, key: str) -> str:
    """Waits for a key's value, unless a process fails."""
    while True:
      try:
        timeout = int(1e3 * _POLL_SECONDS)
        return self._store.blocking_key_value_get(key, timeout)
      except RuntimeError as error:
        if not str(error).startswith(_TIMED_OUT):
          raise LostProcessError(
            f"process 0 does not answer: {str(error).splitlines()[0]}"
          ) from error
      self._while_waiting()
      processes.require_no_failure()


class StopEvent(threading.Event):
  """An event that is set in all processes soon after it is set in one."""

  def __init__(self, event: threading.Event, key: str):
    super().__init__()
    self._own, self._key = event, key
    self._next_look = 0.0

  def is_set(self) -> bool:
    """Returns whether it is set here, or was a second ago in another process.

    Raises:
      ProcessesError: Another process has failed.
    """
    if processes.is_alone():
      return self._own.is_set()
    if self._own.is_set():
      processes.store().key_value_set(self._key, "", allow_overwrite=True)
    elif time.monotonic() >= self._next_look:
      self._next_look = time.monotonic() + _POLL_SECONDS
      processes.require_no_failure()
      if processes.stored(self._key) is not None:
        self._own.set()
    return self._own.is_set()

  def set(self) -> None:
    self._own.set()

  def wait(self, timeout: float | None = None) -> bool:
    """Waits for this process's event, and then checks the others' events."""
    self._own.wait(timeout)
    return self.is_set()


def commit() -> str:
  """Returns the commit of a clone, or else the version of this package."""
  if (_PROJECT_DIR / ".git").exists():
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
      done = subprocess.run(
        command, cwd=_PROJECT_DIR, capture_output=True, text=True, check=True
      )
      return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
      pass  # git is missing, or does not trust the folder's owner.
  return importlib.metadata.version("realm_jax")


def _outcome(compute: Callable[[], Fact]) -> dict[str, Fact]:
  """Returns a function's result or its `RealmError`, as a JSON value."""
  try:
    return {"value": compute()}
  except ProcessesError:
    raise  # The others find out by themselves, and may not answer any more.
  except RealmError as error:
    kind = f"{type(error).__module__}:{type(error).__qualname__}"
    code = int(exit_code_of(error))
    return {"error": kind, "message": str(error), "code": code}


def _value(outcome: Fact, prefix: str = "") -> Fact:
  """Returns the value of an outcome, or raises its error."""
  if "value" in outcome:
    return outcome["value"]
  error = pkgutil.resolve_name(outcome["error"])(prefix + outcome["message"])
  error.exit_code = outcome["code"]
  raise error


def description_of(settings: Mapping[str, Any]) -> dict[str, str]:
  """Describes settings, with the fields of dataclasses, and the program.

  Fields that name directories and files of a host are left out.
  """
  program = {
    "the version of jax": jax.__version__,
    "the commit of realm_jax": commit(),
    "the number of devices": jax.device_count(),
  }
  return dict(
    field
    for name, value in {**program, **settings}.items()
    for field in _fields(name, value)
  )


def _fields(name: str, value: Any) -> Iterator[tuple[str, str]]:
  """Yields the name and value of each field, and of their fields."""
  if not dataclasses.is_dataclass(value):
    yield name, str(value)
    return
  yield f"the type of {name}", type(value).__name__
  for field in dataclasses.fields(value):
    if field.name not in _MAY_DIFFER:
      yield from _fields(f"{name}.{field.name}", getattr(value, field.name))
