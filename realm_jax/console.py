"""Output of commands to a terminal, and input from it.

Progress, tables, the file of `--json` and the selection of log messages; lines
that a user types, and an event that SIGTERM and Ctrl-C set.
"""

import contextlib
import datetime
import io
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from absl import flags
from absl import logging as absl_logging

from realm_jax.errors import RealmError
from realm_jax.storage.json_files import JsonValue, write_json

_PACKAGE_DIR = str(Path(__file__).resolve().parent)
_SECONDS_BETWEEN_LINES = 15.0
# Characters that move a terminal's cursor, change its state or the direction of
# text, and halves of surrogate pairs; but not line ends and tabs.
_CONTROLS = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
  "\ud800-\udfff]"
)
# Flags that are defined here belong to the calling command.
flags.disclaim_key_flags()


class Progress:
  """Logs how many items a `with` block has processed, every 15 seconds.

  With `total`, it also estimates the remaining time. A block that took longer
  than 15 seconds ends with another line. `label` describes the items, such as
  "questions".
  """

  def __init__(self, label: str, *, total: int | None = None):
    self._label, self._total = label, total
    self._count = 0
    self._start = time.monotonic()
    self._show_at = self._start + _SECONDS_BETWEEN_LINES

  def __enter__(self) -> "Progress":
    return self

  def __exit__(
    self, exception_type: type[BaseException] | None, *_: object
  ) -> None:
    seconds = time.monotonic() - self._start
    if exception_type is None and seconds >= _SECONDS_BETWEEN_LINES:
      self._log(f"{self._count} in {seconds:.1f} s", seconds)

  def advance(self, count: int = 1) -> None:
    """Counts processed items, and logs the count if it is time to."""
    self._count += count
    if (now := time.monotonic()) < self._show_at:
      return
    self._show_at = now + _SECONDS_BETWEEN_LINES
    share, seconds = "", now - self._start
    if self._total:
      rest = seconds * (self._total / max(self._count, 1) - 1)
      left = datetime.timedelta(seconds=round(rest))
      share = f" ({100 * self._count // self._total}%, {left} left)"
    self._log(f"{self._count}{share}", seconds)

  def _log(self, done: str, seconds: float) -> None:
    rate = self._count / max(seconds, 1e-9)
    absl_logging.info("%s: %s, %s/s", self._label, done, f"{rate:,.1f}")


def prepare_streams() -> None:
  """Makes the standard streams accept any text, even if one is closed.

  Characters that a stream's encoding lacks are written as escape sequences of
  Python. Bytes that are invalid in it are read as halves of surrogate pairs,
  which `harmless` escapes.
  """
  for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:
      # Reserves the file descriptor, to which C libraries may write.
      setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
  for stream, errors in (
    (sys.stdin, "surrogateescape"),
    (sys.stdout, "backslashreplace"),
  ):
    # A stream that was redirected after Python's start may refuse.
    if isinstance(stream, io.TextIOWrapper):
      with contextlib.suppress(OSError):
        stream.reconfigure(errors=errors)


def harmless(text: str) -> str:
  """Returns a text with its control characters as escape sequences of Python.

  So an untrusted document cannot manipulate the terminal that shows it.
  """
  return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def name_value_table(values: Mapping[str, object]) -> str:
  """Returns a line for each value, in two aligned columns."""
  width = max(map(len, values))
  return "\n".join(
    f"{name:<{width}}  {_text(value)}" for name, value in values.items()
  )


def columns(rows: Sequence[Sequence[object]]) -> str:
  """Returns rows of equal length as aligned columns, the first left-aligned."""
  texts = [[_text(value) for value in row] for row in rows]
  widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
  return "\n".join(
    "  ".join(
      cell.rjust(width) if place else cell.ljust(width)
      for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in texts
  )


def _text(value: object) -> str:
  return f"{value:.4f}" if isinstance(value, float) else str(value)


def json_flag(text: str) -> Callable[[JsonValue], None]:
  """Defines `--json`, a file for a command's results, with the help `text`.

  Returns a function that writes the results if the flag is set.
  """
  # A process may import several commands.
  flag = flags.DEFINE_string("json", None, text, allow_override=True)

  def write(value: JsonValue) -> None:
    if flag.value:
      write_json(flag.value, value)

  return write


def for_each_line(prompt: str, answer: Callable[[str], object]) -> None:
  """Calls a function with each line of the terminal or the standard input.

  On a terminal, `prompt` is shown, and an empty line ends the input.
  Otherwise empty lines are skipped, and each line is printed before its output.
  A `RealmError` for a line is printed, and the next lines follow. At the end,
  such errors are counted.
  """
  is_terminal = sys.stdin.isatty()
  num_lines = num_refused = 0
  with contextlib.suppress(EOFError):
    while True:
      line = input(f"{prompt} (empty to leave): " if is_terminal else "")
      if is_terminal and not line.strip():
        break
      if not line.strip():
        continue
      if not is_terminal:
        print(f"# {harmless(line)}")
      num_lines += 1
      try:
        answer(line)
      except RealmError as error:
        num_refused += 1
        print(f"error: {harmless(str(error))}\n")
  if num_refused and not is_terminal:
    absl_logging.warning("%d of %d lines have an error", num_refused, num_lines)


# Event of the outermost `stop_on_signal` block.
_stop: threading.Event | None = None


@contextlib.contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
  """Yields an event that SIGTERM and Ctrl-C set during the `with` block.

  A second Ctrl-C interrupts at once. A nested block shares the outer block's
  event: a signal before the inner block begins is not lost, and stops both.
  Only the main thread can handle signals; in others the event stays unset.
  """
  global _stop
  if threading.current_thread() is not threading.main_thread():
    yield threading.Event()
    return
  if _stop is not None:
    yield _stop
    return
  _stop = stop = threading.Event()
  before = {
    number: signal.getsignal(number)
    for number in (signal.SIGTERM, signal.SIGINT)
  }

  def handle(number: int, _: object) -> None:
    stop.set()
    if number == signal.SIGINT:
      signal.signal(number, before[signal.SIGINT])

  for number in before:
    signal.signal(number, handle)
  try:
    yield stop
  finally:
    _stop = None
    for number, handler in before.items():
      signal.signal(number, handler)


def is_stopping() -> bool:
  """Returns whether a signal was received in a block of `stop_on_signal`."""
  return _stop is not None and _stop.is_set()


def hide_library_messages() -> None:
  """Logs this project's messages from INFO on, and other libraries' warnings.

  Orbax's messages are hidden: about twenty lines for a checkpoint, and
  tracebacks of its threads, whose errors it also raises. So are messages of
  asyncio, which only orbax uses, about writes that it abandons after one has
  failed. Warnings of other libraries are shown without tracebacks: gcsfs logs
  one for each request that fails in an outage of the store.
  """
  absl_logging.set_verbosity(absl_logging.INFO)
  absl_logging.get_absl_handler().addFilter(_is_shown)
  sys.unraisablehook = _report_unraisable


def _is_shown(record: logging.LogRecord) -> bool:
  if record.pathname.startswith(_PACKAGE_DIR):
    return True
  record.exc_info = None
  is_orbax = "orbax" in record.pathname or record.name == "asyncio"
  return record.levelno >= logging.WARNING and not is_orbax


def _report_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
  """Prints an error that could not be raised, except for abandoned writes.

  When a part of a checkpoint cannot be written, orbax raises, and closes the
  event loop that other parts use. TensorStore then reports the closed loop for
  each of them.
  """
  error = unraisable.exc_value
  if isinstance(error, RuntimeError) and str(error) == "Event loop is closed":
    return
  sys.__unraisablehook__(unraisable)
