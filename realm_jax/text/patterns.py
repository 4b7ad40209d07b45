r"""Regular expressions as answers (CuratedTREC), bounded in time.

Python's `re` decides which patterns are valid, as in Google's evaluation. The
`regex` package searches: it has the syntax and the Unicode classes of `re`, and
stops when it is told to. RE2, whose time is linear, has neither: its `\s`,
`\d`, `\w` and `\b` know only ASCII.
"""

import functools
import re
import time
import warnings
from collections.abc import Callable
from typing import TypeVar

import regex
from absl import logging

# As in Google's `language/orqa/utils/eval_utils.py`.
FLAGS = re.IGNORECASE | re.UNICODE | re.MULTILINE
# What a pattern may use at once, and what each further text adds to that.
_SECONDS_AT_ONCE = 1.0
_SECONDS_PER_TEXT = 1e-3

_Found = TypeVar("_Found")


class Pattern:
  """A pattern, which may spend a limited time on texts.

  It may search for a second, and for a millisecond more with each text. One
  that is not valid, or has taken longer, matches nothing any more, and
  `problem` says why.
  """

  def __init__(self, pattern: str):
    self.problem = ""
    self._pattern = pattern
    self._seconds_left = _SECONDS_AT_ONCE
    # The user can do nothing about a pattern of the data that a later Python
    # may read differently.
    with warnings.catch_warnings(action="ignore"):
      try:
        re.compile(pattern, FLAGS)
        self._compiled = regex.compile(
          pattern, regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
        )
      except (re.error, regex.error, OverflowError, RecursionError) as error:
        self._give_up(str(error) or type(error).__name__)

  def begins(self, text: str) -> bool:
    """Returns whether it matches at the start of a text, maybe emptily."""
    found = self._limited(lambda t: self._compiled.match(text, timeout=t))
    return found is not None

  def occurs(self, text: str) -> bool:
    """Returns whether it matches anywhere in a text, maybe emptily."""
    found = self._limited(lambda t: self._compiled.search(text, timeout=t))
    return found is not None

  def spans(self, text: str, *, at_most: int | None = None) -> list[range]:
    """Returns where it matches, in characters, without outer white space.

    Matches do not overlap, and those of nothing but white space are left out.
    """

    def search(timeout: float) -> list[range]:
      found: list[range] = []
      for match in self._compiled.finditer(text, timeout=timeout):
        matched = match.group()
        if stripped := matched.strip():
          start = match.start() + len(matched) - len(matched.lstrip())
          found.append(range(start, start + len(stripped)))
          if len(found) == at_most:
            break
      return found

    return self._limited(search) or []

  def _limited(self, search: Callable[[float], _Found]) -> _Found | None:
    """Runs a search, which may take as long as the pattern has left."""
    if self.problem:
      return None
    # A process that does not run for a while must not condemn a pattern.
    start, found = time.thread_time(), None
    try:
      found = search(self._seconds_left)
    except TimeoutError:
      self._seconds_left = -_SECONDS_AT_ONCE
    left = self._seconds_left + _SECONDS_PER_TEXT - (time.thread_time() - start)
    self._seconds_left = min(left, _SECONDS_AT_ONCE)
    if left > 0:
      return found
    self._give_up("it takes too long on texts of this length")
    return None

  def _give_up(self, problem: str) -> None:
    self.problem = problem
    logging.warning(
      "answer pattern %r matches nothing: %s", self._pattern, problem
    )


@functools.lru_cache(maxsize=65536)
def compiled(pattern: str) -> Pattern:
  """Returns a pattern, which is compiled once in a process."""
  return Pattern(pattern)
