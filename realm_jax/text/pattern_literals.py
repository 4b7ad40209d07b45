"""Literals that every match of a regular expression contains one of.

A search for many patterns looks for their literals first, all at once, and runs
a pattern only on texts that have one of its own. Literals and texts are folded
alike, so that whatever a pattern matches regardless of case is found.

Python's own parser says what a pattern consists of. It is not public, but has
been the same since Python 3.11.
"""

import itertools
import warnings
from collections.abc import Iterable
from re import _constants as codes  # type: ignore
from re import _parser as parser  # type: ignore
from typing import Any

from realm_jax.text import patterns

# In `re`, regardless of case, both of these match "i". Case folding gives the
# first two characters, and leaves the second alone.
_DOTTED_AND_DOTLESS = str.maketrans("\u0130\u0131", "ii")
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)

# How many texts one run of literals may stand for: (18|19)[0-9] has 20.
_MAX_TEXTS = 32

Literals = frozenset[str]
# What `re`'s parser makes of a pattern: codes and their arguments.
Parsed = Iterable[tuple[Any, Any]]

_NOTHING: Literals = frozenset([""])


def fold(text: str) -> str:
  """Returns a text in which characters that differ by case are the same.

  Each character is folded by itself, whatever stands beside it.
  """
  return text.translate(_DOTTED_AND_DOTLESS).casefold()


def required_literals(pattern: str) -> Literals | None:
  """Returns folded literals of which each match's text, folded, has one.

  The shortest of them is as long as possible. There are none, None, for a
  pattern such as `[0-9]+` that has no such literals. `pattern` is valid.
  """
  with warnings.catch_warnings(action="ignore"):
    found = _required(parser.parse(pattern, patterns.FLAGS))
  if found is None:
    return None
  # Whatever has a longer literal has the shorter one in it, too.
  return frozenset(
    long for long in found if not any(s in long for s in found - {long})
  )


def sufficient_literals(pattern: str) -> Literals:
  """Returns folded literals with which an ASCII text surely has a match.

  They are alternatives without any operator, and are ASCII, too: beyond it,
  folding may make texts equal that the pattern tells apart.
  """
  with warnings.catch_warnings(action="ignore"):
    parts = list(parser.parse(pattern, patterns.FLAGS))
  prefix = _exact(parts[:-1])
  if not parts or prefix is None:
    return frozenset()
  branches: list[Parsed] = [parts[-1:]]
  if parts[-1][0] is codes.BRANCH:
    branches = parts[-1][1][1]
  texts = set[str]()
  for branch in branches:
    whole = _product(prefix, _exact(branch) or frozenset())
    texts |= {t for t in whole or () if t.strip() and t.isascii()}
  return frozenset(map(fold, texts))


def _required(sequence: Parsed) -> Literals | None:
  """Returns the best literals of parts that follow each other."""
  best: Literals | None = None
  # Texts that the last parts match, and no others.
  run = _NOTHING
  for code, argument in sequence:
    if code is codes.AT:
      continue  # It has no width: what stands around it is adjacent.
    exact = _exact_part(code, argument)
    longer = None if exact is None else _product(run, exact)
    if longer is not None:
      run = longer
      continue
    best = _better(best, _folded(run))
    best = _better(best, _of_part(code, argument))
    run = _NOTHING if exact is None else exact
  return _better(best, _folded(run))


def _of_part(code: Any, argument: Any) -> Literals | None:
  """Returns the literals of a part that matches more than a few texts."""
  if code is codes.BRANCH:
    branches = [_required(branch) for branch in argument[1]]
    found = [literals for literals in branches if literals is not None]
    return frozenset().union(*found) if len(found) == len(branches) else None
  if code is codes.SUBPATTERN:
    return _required(argument[-1])
  if code is codes.ATOMIC_GROUP:
    return _required(argument)
  if code in _REPEATS and argument[0] > 0:
    return _required(argument[-1])
  return None


def _exact(sequence: Parsed) -> Literals | None:
  """Returns all texts that parts in sequence match, if they are few."""
  texts: Literals | None = _NOTHING
  for code, argument in sequence:
    exact = _exact_part(code, argument)
    if exact is None or texts is None:
      return None
    texts = _product(texts, exact)
  return texts


def _exact_part(code: Any, argument: Any) -> Literals | None:
  """Returns all texts that a part matches, if they are few."""
  if code is codes.LITERAL:
    return frozenset([chr(argument)])
  if code is codes.IN:
    return _characters(argument)
  if code is codes.SUBPATTERN:
    _, added_flags, removed_flags, parts = argument
    return None if added_flags or removed_flags else _exact(parts)
  if code in _REPEATS and argument[:2] == (0, 1):
    once = _exact(argument[-1])
    return None if once is None else once | _NOTHING
  if code is codes.BRANCH:
    branches = [_exact(branch) for branch in argument[1]]
    found = [texts for texts in branches if texts is not None]
    if len(found) == len(branches) and sum(map(len, found)) <= _MAX_TEXTS:
      return frozenset().union(*found)
  return None


def _characters(members: Parsed) -> Literals | None:
  """Returns the characters of a class that lists a few."""
  characters: list[int] = []
  for code, argument in members:
    if code is codes.LITERAL:
      characters.append(argument)
    elif code is codes.RANGE and argument[1] - argument[0] < _MAX_TEXTS:
      characters.extend(range(argument[0], argument[1] + 1))
    else:
      return None
  return frozenset(map(chr, characters))


def _product(first: Literals, second: Literals) -> Literals | None:
  if len(first) * len(second) > _MAX_TEXTS:
    return None
  return frozenset(a + b for a, b in itertools.product(first, second))


def _folded(texts: Literals) -> Literals | None:
  """Returns texts as literals; a text of nothing is in every other."""
  return None if "" in texts else frozenset(map(fold, texts))


def _better(first: Literals | None, second: Literals | None) -> Literals | None:
  """Returns the one with the longer shortest literal, then with fewer."""
  if first is None or second is None:
    return second if first is None else first
  return max(first, second, key=lambda lits: (min(map(len, lits)), -len(lits)))
