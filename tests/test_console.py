"""Progress, and what commands print of other libraries."""

import io
import itertools
import logging
import sys
import types

import pytest
from absl import logging as absl_logging
from gcsfs.retry import HttpError

from harness.object_store import StoreFault
from realm_jax import console
from realm_jax.storage.paths import read_bytes


def test_a_request_that_an_outage_fails_is_one_line(object_store, monkeypatch):
  handler, shown = absl_logging.get_absl_handler(), io.StringIO()
  monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
  # absl writes to one of the two, whether flags have been parsed or not.
  monkeypatch.setattr(sys, "stderr", shown)
  monkeypatch.setattr(handler.python_handler, "stream", shown)
  console.hide_library_messages()
  object_store.inject(StoreFault("refuse", ".", times=99))
  with pytest.raises(HttpError):
    read_bytes(object_store.path("a"))
  # absl has another line where no flags were parsed.
  lines = shown.getvalue().splitlines()
  assert len([line for line in lines if line.startswith("E")]) == 1
  assert len(lines) <= 2, lines


def test_progress_is_said_every_fifteen_seconds_and_at_the_end(monkeypatch):
  lines, clock = [], itertools.count(0, 5)
  times = types.SimpleNamespace(monotonic=lambda: next(clock))
  monkeypatch.setattr(console, "time", times)
  monkeypatch.setattr(absl_logging, "info", lambda *line: lines.append(line))
  with console.Progress("questions", total=800) as progress:
    for _ in range(8):
      progress.advance()
  first, _, end = (form % tuple(values) for form, *values in lines)
  # Three questions in 15 seconds, and 797 to go.
  assert first == "questions: 3 (0%, 1:06:25 left), 0.2/s"
  assert end.startswith("questions: 8 in 45.0 s")
