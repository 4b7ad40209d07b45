"""Messages of other libraries that say nothing to a user of a command."""

import logging
import sys
from pathlib import Path

from absl import logging as absl_logging

_PACKAGE_DIR = str(Path(__file__).resolve().parent.parent)


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
