"""Agreements: decisions that all processes of a run take alike.

They go through the key-value store of jax's coordination service, from host to
host, and not through a collective on the devices.
"""

import collections
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from realm_jax.partitioning import processes
from realm_jax.partitioning.processes import LostProcessError, ProcessesError

T = TypeVar("T")
# A value that JSON can hold.
Fact = Any

# How long one call waits for a key before it is asked whether a process failed.
_POLL_SECONDS = 1.0
# Decisions whose keys are deleted together.
_DECISIONS_PER_GROUP = 64
# The store refuses values of several megabytes.
_CHARACTERS_PER_PIECE = 1 << 20
_TIMED_OUT = ("DEADLINE_EXCEEDED", "NOT_FOUND")
# How many agreements of each name this process has opened.
_opened: collections.Counter[str] = collections.Counter()


class Agreement:
  """Decisions that all processes of a run take together, one after another.

  Process 0 decides, of what every process knows, and the others read its
  decision. All processes must open their agreements, and ask for the same
  decisions, in the same order, each from one thread. With one process a
  decision is a call.

  Args:
    name: Name of this sequence of decisions; another thread needs another.
    while_waiting: Function that is called about once a second meanwhile.
  """

  def __init__(
    self, name: str, *, while_waiting: Callable[[], None] = lambda: None
  ):
    self._while_waiting = while_waiting
    # A process may train one run after another.
    self._prefix = f"{processes.PREFIX}/{name}/{_opened[name]}"
    _opened[name] += 1
    self._numbers = itertools.count()
    self._gathered = itertools.count()
    self._client = processes.store()
    self.index, self.count = jax.process_index(), jax.process_count()

  def decide(
    self, what: str, fact: Fact, rule: Callable[[Sequence[Fact]], Fact]
  ) -> Fact:
    """Returns what process 0 decides by `rule`, from the facts of all.

    Facts and decisions are values that JSON can hold. `what` names the
    decision, so that processes that have lost step are found.

    Raises:
      ProcessesError: A process has failed, or asks for another decision.
    """
    if self.count == 1:
      return rule([fact])
    group, number = divmod(next(self._numbers), _DECISIONS_PER_GROUP)
    folder = f"{self._prefix}/{group}/{number}"
    own = json.dumps({"what": what, "fact": fact})
    if self.index:
      self._client.key_value_set(f"{folder}/{self.index}", own)
      return json.loads(self._text(f"{folder}/decision"))
    others = (self._text(f"{folder}/{i}") for i in range(1, self.count))
    given = [json.loads(text) for text in (own, *others)]
    asked = {entry["what"] for entry in given}
    if asked != {what}:
      raise ProcessesError(f"the processes are out of step: {sorted(asked)}")
    decision = json.dumps(rule([entry["fact"] for entry in given]))
    self._client.key_value_set(f"{folder}/decision", decision)
    # Whoever asks for a decision of this group has read those before it.
    if group and number == 0:
      self._client.key_value_delete(f"{self._prefix}/{group - 1}")
    return json.loads(decision)

  def led(
    self,
    what: str,
    compute: Callable[[], T],
    errors: Sequence[type[Exception]] = (),
  ) -> T:
    """Returns what process 0 computes, on all processes, or raises its error.

    Args:
      what: Name of what is computed.
      compute: Function that returns a value that JSON can hold.
      errors: Types of exceptions of `compute` that all processes raise.
    """
    if self.count == 1:
      return compute()
    outcome = _outcome(compute, errors) if self.index == 0 else None
    outcome = self.decide(what, outcome, lambda facts: facts[0])
    _raise(outcome, errors)
    return outcome["value"]

  def everywhere(
    self,
    what: str,
    compute: Callable[[], T],
    errors: Sequence[type[Exception]] = (),
  ) -> T:
    """Returns what this process computes, if all processes succeed.

    Where one raises an exception of `errors`, all raise it.
    """
    if self.count == 1:
      return compute()
    kept: list[T] = []
    outcome = _outcome(lambda: kept.append(compute()), errors)
    _raise(self.decide(what, outcome, _first_error), errors)
    return kept[0]

  def gathered(self, what: str, value: T) -> list[T]:
    """Returns the values of all processes on process 0, and none on others.

    A value, which JSON can hold, may be large: it is exchanged in pieces.

    Raises:
      ProcessesError: A process has failed, or asks for another decision.
    """
    if self.count == 1:
      return [value]
    text = json.dumps(value)
    starts = range(0, len(text), _CHARACTERS_PER_PIECE)
    counts = self.decide(f"pieces of {what}", len(starts), list)
    folder = f"{self._prefix}/gathered/{next(self._gathered)}"
    if self.index:
      for piece, start in enumerate(starts):
        part = text[start : start + _CHARACTERS_PER_PIECE]
        self._client.key_value_set(f"{folder}/{self.index}/{piece}", part)
      return []
    values = [value]
    for process in range(1, self.count):
      own = f"{folder}/{process}"
      parts = [self._text(f"{own}/{i}") for i in range(counts[process])]
      values.append(json.loads("".join(parts)))
      self._client.key_value_delete(own)
    return values

  def require_no_failure(self) -> None:
    """Checks that no other process has failed, without waiting for any.

    Raises:
      ProcessesError: One has.
    """
    failed = (
      None if self.count == 1 else _try_get(self._client, processes.FAILED)
    )
    if failed is None:
      return
    process, code = map(int, failed.split())
    if process != self.index:
      raise LostProcessError(
        f"process {process} has failed, and its log says why; start all "
        "processes again",
        code,
      )

  def require_same(self, facts: Mapping[str, str]) -> None:
    """Compares what must be the same in all processes, by name.

    Raises:
      ProcessesError: A value differs.
    """
    if difference := self.decide("what runs", dict(facts), _difference):
      raise ProcessesError(difference)

  def flag(self, name: str) -> "Flag":
    """Returns a flag that any process may set, and any may read."""
    return Flag(self._client, f"{self._prefix}/flags/{name}")

  def _text(self, key: str) -> str:
    """Waits for a key, for as long as no process has failed."""
    while True:
      try:
        timeout = int(1e3 * _POLL_SECONDS)
        return self._client.blocking_key_value_get(key, timeout)
      except RuntimeError as error:
        if not str(error).startswith(_TIMED_OUT):
          raise LostProcessError(
            f"process 0 does not answer: {str(error).splitlines()[0]}"
          ) from error
      self._while_waiting()
      self.require_no_failure()


class Flag:
  """A flag that any process may set, and any may read; no use to a lone one."""

  def __init__(self, client: Any, key: str):
    self._client = client
    self._key = key

  def set(self) -> None:
    if self._client is None:
      return
    self._client.key_value_set(self._key, "", allow_overwrite=True)

  def is_set(self) -> bool:
    if self._client is None:
      return False
    return _try_get(self._client, self._key) is not None


class StopForAll(threading.Event):
  """An event that is set in all processes soon after it is set in one.

  Args:
    own: Event of this process, which SIGTERM sets.
    agreement: Of all processes, none of which must ask it for decisions.
  """

  def __init__(self, own: threading.Event, agreement: Agreement):
    super().__init__()
    self._own = own
    self._agreement = agreement
    self._of_all = agreement.flag("stop")
    self._next_look = 0.0

  def is_set(self) -> bool:
    """Returns whether it is set here, or was a second ago in another process.

    Raises:
      ProcessesError: Another process has failed.
    """
    if self._own.is_set():
      self._of_all.set()
    elif time.monotonic() >= self._next_look:
      self._next_look = time.monotonic() + _POLL_SECONDS
      self._agreement.require_no_failure()
      if self._of_all.is_set():
        self._own.set()
    return self._own.is_set()

  def set(self) -> None:
    self._own.set()

  def wait(self, timeout: float | None = None) -> bool:
    """Waits for this process's event, and then looks at that of the others."""
    self._own.wait(timeout)
    return self.is_set()


def _try_get(client: Any, key: str) -> str | None:
  try:
    return client.key_value_try_get(key)
  except RuntimeError:
    return None


def _outcome(
  compute: Callable[[], Fact], errors: Sequence[type[Exception]]
) -> dict[str, Fact]:
  try:
    return {"value": compute()}
  except tuple(errors) as error:
    # The closest of the types that all processes know.
    known = [kind for kind in errors if isinstance(error, kind)]
    closest = max(known, key=lambda kind: len(kind.__mro__))
    return {
      "error": closest.__name__,
      "message": str(error),
      "exit_code": getattr(error, "exit_code", None),
    }


def _first_error(outcomes: Sequence[Fact]) -> Fact:
  for process, outcome in enumerate(outcomes):
    if "error" in outcome:
      message = f"process {process}: {outcome['message']}"
      return outcome | {"message": message}
  return outcomes[0]


def _raise(outcome: Fact, errors: Sequence[type[Exception]]) -> None:
  if "error" not in outcome:
    return
  by_name = {error.__name__: error for error in errors}
  error: Any = by_name[outcome["error"]](outcome["message"])
  if outcome["exit_code"] is not None:
    # That of a type which not all processes may know.
    error.exit_code = outcome["exit_code"]
  raise error


def _difference(facts: Sequence[Mapping[str, str]]) -> str | None:
  first = facts[0]
  for process, other in enumerate(facts):
    for name in sorted(first.keys() | other.keys()):
      here, there = first.get(name, "nothing"), other.get(name, "nothing")
      if here != there:
        return (
          f"{name} is {there} in process {process}, and {here} in process 0; "
          "start all processes with the same"
        )
  return None
