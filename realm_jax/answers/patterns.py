r"""Regular expressions as answers (CuratedTREC), with bounded steps.

Python's `re` decides which patterns are valid, as in Google's evaluation. PCRE2
searches: it has the syntax and the Unicode classes of `re`, and counts its
steps, so that a pattern which is too slow for a text is so on any machine. RE2,
whose time is linear, has neither: its `\s`, `\d`, `\w` and `\b` know only
ASCII.
"""

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator

import pcre2
from absl import logging

# As in Google's `language/orqa/utils/eval_utils.py`.
FLAGS = re.IGNORECASE | re.UNICODE | re.MULTILINE
_PCRE2_FLAGS = pcre2.IGNORECASE | pcre2.UNICODE | pcre2.MULTILINE
# Steps from each character on. They take five milliseconds, and no pattern of
# CuratedTREC needs them.
_MAX_STEPS = 100_000


class Pattern:
  """A pattern, and what it matches.

  One that is not valid matches nothing, and `problem` says why. One that needs
  too many steps at some character of a text matches nothing from there on.
  """

  def __init__(self, pattern: str):
    self.problem = ""
    self._pattern = pattern
    # The user can do nothing about a pattern of the data that a later Python
    # may read differently.
    with warnings.catch_warnings(action="ignore"):
      try:
        re.compile(pattern, FLAGS)
        # PCRE2's just-in-time compiler counts otherwise, and has a small stack.
        limited = f"(*LIMIT_MATCH={_MAX_STEPS}){pattern}"
        self._compiled = pcre2.compile(limited, _PCRE2_FLAGS, jit=False)
      except (
        *(re.error, pcre2.PatternError, pcre2.LibraryError),
        *(OverflowError, RecursionError),
      ) as error:
        self.problem = str(error) or type(error).__name__
        logging.warning(
          "answer pattern %r matches nothing: %s", pattern, self.problem
        )

  def begins(self, text: str) -> bool:
    """Returns whether it matches at the start of a text, maybe emptily."""
    return any(self._matches(lambda p: filter(None, [p.match(text)])))

  def occurs(self, text: str) -> bool:
    """Returns whether it matches anywhere in a text, maybe emptily."""
    return any(True for _ in self._matches(lambda p: p.finditer(text)))

  def spans(self, text: str) -> Iterator[range]:
    """Yields where it matches, in characters, without outer white space.

    Matches do not overlap, and those of nothing but white space are left out.
    """
    for match in self._matches(lambda p: p.finditer(text)):
      matched = text[match.start() : match.end()]
      if stripped := matched.strip():
        start = match.start() + len(matched) - len(matched.lstrip())
        yield range(start, start + len(stripped))

  def _matches(
    self, search: Callable[[pcre2.Pattern], Iterable[pcre2.Match]]
  ) -> Iterator[pcre2.Match]:
    """Yields matches, up to where one would need too many steps."""
    if self.problem:
      return
    try:
      yield from search(self._compiled)
    except pcre2.LibraryError as error:
      logging.warning(
        "answer pattern %r does not match a text: %s", self._pattern, error
      )


@functools.lru_cache(maxsize=65536)
def compiled(pattern: str) -> Pattern:
  """Returns a pattern, which is compiled once in a process."""
  return Pattern(pattern)
