"""Output of commands, and what reaches them from a terminal.

Progress, tables, the file of `--json` and the choice of log messages;
lines that a user types, and a flag that SIGTERM and Ctrl-C set.
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
# Characters that move a terminal's cursor or change its state, or the direction
# of the text that follows, and halves of surrogate pairs; not the end of a line
# and the tabulator.
_CONTROLS = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
  "\ud800-\udfff]"
)
# A flag that is defined here belongs to the command that asks for it.
flags.disclaim_key_flags()


class Progress:
  """Logs how many items a `with` block has processed, every 15 seconds.

  With their `total` it also says how long the rest takes at that rate. A block
  that took longer also ends with a line. `label` names the items, such as
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
    """Counts items that were processed, and logs it if it is time to."""
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
  """Makes the standard streams take any text, also where one is closed.

  A character that a stream's encoding lacks is written as an escape sequence of
  Python, and a byte that is not of its encoding is read as half of a surrogate
  pair, which `harmless` shows.
  """
  for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:
      # No other file may get its number: libraries in C would write to it.
      setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
  for stream, errors in (
    (sys.stdin, "surrogateescape"),
    (sys.stdout, "backslashreplace"),
  ):
    # One that was redirected since Python started may refuse.
    if isinstance(stream, io.TextIOWrapper):
      with contextlib.suppress(OSError):
        stream.reconfigure(errors=errors)


def harmless(text: str) -> str:
  """Returns a text with its control characters as escape sequences of Python.

  So a document of somebody else's cannot change the terminal that shows it.
  """
  return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def name_value_table(values: Mapping[str, object]) -> str:
  """Returns a line for each value, in two aligned columns."""
  width = max(map(len, values))
  return "\n".join(
    f"{name:<{width}}  {_text(value)}" for name, value in values.items()
  )


def columns(rows: Sequence[Sequence[object]]) -> str:
  """Returns rows of equal length as aligned columns, the first to the left."""
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
  """Defines `--json`, which `text` describes, the file of a command's results.

  Returns a function that writes them if the flag is given.
  """
  # A process may import several commands.
  flag = flags.DEFINE_string("json", None, text, allow_override=True)

  def write(value: JsonValue) -> None:
    if flag.value:
      write_json(flag.value, value)

  return write


def for_each_line(wanted: str, answer: Callable[[str], object]) -> None:
  """Calls a function with each line of the terminal or the standard input.

  On a terminal `wanted` is the prompt, and an empty line ends them. Elsewhere
  empty lines are left out, and each line is printed, so that what follows can
  be told apart. A `RealmError` of one line is printed in its place, and the
  others follow. At the end such lines are counted.
  """
  is_terminal = sys.stdin.isatty()
  num_lines = num_refused = 0
  with contextlib.suppress(EOFError):
    while True:
      line = input(f"{wanted} (empty to leave): " if is_terminal else "")
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


# The event of the outermost block that a signal stops.
_stop: threading.Event | None = None


@contextlib.contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
  """Yields an event that SIGTERM and Ctrl-C set during the `with` block.

  A second Ctrl-C interrupts at once. A block within another one shares its
  event: a signal is not lost if it comes before the inner block begins, and it
  stops both. Only the main thread can handle signals. In any other the event
  stays unset.
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
  """Returns whether a signal has come in a block of `stop_on_signal`."""
  return _stop is not None and _stop.is_set()


def hide_library_messages() -> None:
  """Logs this project's messages from INFO on, and other libraries' warnings.

  Orbax's messages are hidden: some twenty lines for a checkpoint, and the
  tracebacks of its threads, whose errors it also raises to the caller. So are
  those of asyncio, which orbax alone uses, about the writes that it abandons
  when one of them has failed. The warnings of others are shown without their
  tracebacks: gcsfs logs one for each request that an outage of the store fails.
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
  """Prints an error that could not be raised, except of abandoned writes.

  When a part of a checkpoint cannot be written, orbax raises and closes the
  event loop that the other parts use. As each of these ends, TensorStore
  reports that the loop is closed.
  """
  error = unraisable.exc_value
  if isinstance(error, RuntimeError) and str(error) == "Event loop is closed":
    return
  sys.__unraisablehook__(unraisable)
