r"""Regular expressions as answers (CuratedTREC), with a limit of steps.

Python's `re` decides which patterns are valid, as in Google's evaluation. PCRE2
matches them: it has the syntax and the Unicode classes of `re`, and it counts
its steps, so whether a pattern is too slow for a text does not depend on the
machine. RE2, whose time is linear, supports only ASCII in `\s`, `\d`, `\w` and
`\b`.
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
# Limit of steps for a match at one character. They take five milliseconds; the
# patterns of CuratedTREC need fewer.
_MAX_STEPS = 100_000


class Pattern:
  """A pattern for answers.

  An invalid pattern matches nothing, and `problem` says why it is invalid. If a
  pattern needs too many steps at some character of a text, it matches nothing
  from there on.
  """

  def __init__(self, pattern: str):
    self.problem = ""
    self._pattern = pattern
    # Python warns about syntax that later versions may read differently, but
    # users cannot change the patterns of a data set.
    with warnings.catch_warnings(action="ignore"):
      try:
        re.compile(pattern, FLAGS)
        # The JIT compiler of PCRE2 counts differently, and has a small stack.
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
    """Returns whether it matches the start of a text, possibly emptily."""
    return any(self._matches(lambda p: filter(None, [p.match(text)])))

  def occurs(self, text: str) -> bool:
    """Returns whether it matches anywhere in a text, possibly emptily."""
    return any(True for _ in self._matches(lambda p: p.finditer(text)))

  def spans(self, text: str) -> Iterator[range]:
    """Yields ranges of characters that match, without outer white space.

    Matches do not overlap. Matches with nothing but white space are skipped.
    """
    for match in self._matches(lambda p: p.finditer(text)):
      matched = text[match.start() : match.end()]
      if stripped := matched.strip():
        start = match.start() + len(matched) - len(matched.lstrip())
        yield range(start, start + len(stripped))

  def _matches(
    self, search: Callable[[pcre2.Pattern], Iterable[pcre2.Match]]
  ) -> Iterator[pcre2.Match]:
    """Yields matches, until one would need too many steps."""
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
  """Returns a pattern, compiled once in each process."""
  return Pattern(pattern)
