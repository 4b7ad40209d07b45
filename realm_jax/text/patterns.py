r"""Regular expressions as answers (CuratedTREC), bounded in time.

Python's `re` decides which patterns are valid, as in Google's evaluation. The
`regex` package searches: it has the syntax and the Unicode classes of `re`, and
stops when it is told to. RE2, whose time is linear, has neither: its `\s`,
`\d`, `\w` and `\b` know only ASCII.
"""

import contextlib
import functools
import re
import time
import warnings
from collections.abc import Iterator

import regex
from absl import logging

# As in Google's `language/orqa/utils/eval_utils.py`.
FLAGS = re.IGNORECASE | re.UNICODE | re.MULTILINE
# What a pattern may use at once, and what each further text adds to that.
_SECONDS_AT_ONCE = 1.0
_SECONDS_PER_TEXT = 1e-3


class PatternError(ValueError):
  """A pattern that is not valid, or too slow."""


class Pattern:
  """A valid pattern, which may spend a limited time on texts.

  It may search for a second, and for a millisecond more with each text. Once
  it has taken longer, it counts as too slow and is not searched again.

  Attributes:
    too_slow: Why it is not searched any more; empty while it is.
  """

  def __init__(self, pattern: str):
    """Compiles a pattern.

    Raises:
      PatternError: It is not valid.
    """
    # The user can do nothing about a pattern of the data that a later Python
    # may read differently.
    with warnings.catch_warnings(action="ignore"):
      try:
        re.compile(pattern, FLAGS)
        self._compiled = regex.compile(
          pattern, regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
        )
      except (re.error, regex.error, OverflowError, RecursionError) as error:
        raise PatternError(str(error) or type(error).__name__) from error
    self._pattern = pattern
    self._seconds_left = _SECONDS_AT_ONCE
    self.too_slow = ""

  def begins(self, text: str) -> bool:
    """Returns whether it matches at the start of a text, maybe emptily.

    Raises:
      PatternError: It is too slow.
    """
    with self._limited() as timeout:
      return self._compiled.match(text, timeout=timeout) is not None

  def occurs(self, text: str) -> bool:
    """Returns whether it matches anywhere in a text, maybe emptily.

    Raises:
      PatternError: It is too slow.
    """
    with self._limited() as timeout:
      return self._compiled.search(text, timeout=timeout) is not None

  def spans(self, text: str, *, at_most: int | None = None) -> list[range]:
    """Returns where it matches, in characters, without outer white space.

    Matches do not overlap, and those of nothing but white space are left out.

    Raises:
      PatternError: It is too slow.
    """
    found: list[range] = []
    with self._limited() as timeout:
      for match in self._compiled.finditer(text, timeout=timeout):
        matched = match.group()
        if stripped := matched.strip():
          start = match.start() + len(matched) - len(matched.lstrip())
          found.append(range(start, start + len(stripped)))
          if len(found) == at_most:
            break
    return found

  @contextlib.contextmanager
  def _limited(self) -> Iterator[float]:
    """Measures one search, which may take as long as the pattern has left."""
    if self.too_slow:
      raise PatternError(self.too_slow)
    # A process that does not run for a while must not condemn a pattern.
    start, error = time.thread_time(), None
    try:
      yield self._seconds_left
    except TimeoutError as timeout:
      error = timeout
    left = self._seconds_left + _SECONDS_PER_TEXT - (time.thread_time() - start)
    self._seconds_left = min(left, _SECONDS_AT_ONCE)
    if error is not None or left <= 0:
      self.too_slow = "it takes too long on texts of this length"
      logging.warning("answer pattern %r: %s", self._pattern, self.too_slow)
      raise PatternError(self.too_slow) from error


@functools.lru_cache(maxsize=65536)
def _compiled(pattern: str) -> Pattern | PatternError:
  try:
    return Pattern(pattern)
  except PatternError as error:
    logging.warning("answer pattern %r never matches: %s", pattern, error)
    return error


def compiled(pattern: str) -> Pattern:
  """Returns a pattern, which is compiled once in a process.

  Raises:
    PatternError: It is not valid.
  """
  found = _compiled(pattern)
  if isinstance(found, PatternError):
    raise found
  return found


def why_unusable(pattern: str) -> str:
  """Returns why a pattern is invalid or was too slow; empty if it is usable."""
  found = _compiled(pattern)
  return str(found) if isinstance(found, PatternError) else found.too_slow
