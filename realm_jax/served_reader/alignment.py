"""Which tokens of a text, as a server has cut it, are those of the target.

A server says of each token where it begins (`text_offset`), in characters or in
bytes, after a beginning-of-text token or a space that it has put in front. Or
its offsets are of no use, because it decodes each token by itself. Which of
these holds is found out with a text that has characters of several bytes.
"""

import bisect
import re
from typing import Literal, NamedTuple

Unit = Literal["characters", "bytes", "tokens"]
# A token that is a single byte, by its name.
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>|bytes:.*")
# Characters of two and three bytes follow the first words.
_FIRST, _OTHERS = "One:", " Zürich, 東京 and naïve"


class Tokens(NamedTuple):
  """The tokens of a text, and what the model says of them.

  Attributes:
    texts: Texts of the tokens, as the server decodes them.
    log_probs: log p of each, given those before it; None of the first.
    offsets: Where each begins, if the server says so.
    num_generated: Number of tokens at the end that are not of the text.
    num_billed: Number of tokens that the request has cost.
  """

  texts: list[str]
  log_probs: list[float | None]
  offsets: list[int] | None
  num_generated: int
  num_billed: int


class Alignment(NamedTuple):
  """How the tokens of a server are matched with a text.

  Attributes:
    unit: What offsets count; `tokens` if the tokens' own texts are compared.
    shift: Offset of the text's first character.
  """

  unit: Unit
  shift: int = 0

  def target_of(self, found: Tokens, prompt: str, target: str) -> slice | None:
    """Returns which tokens are the target's, after a prompt.

    It returns None if no token ends where the prompt does.
    """
    if self.unit == "tokens" or found.offsets is None:
      start = num_tokens_of(found.texts, prompt)
      stop = len(found.texts) - found.num_generated
      return None if start is None else slice(start, stop)
    begin = self.shift + _size(prompt, self.unit)
    start = bisect.bisect_left(found.offsets, begin)
    if found.offsets[start : start + 1] != [begin]:
      return None
    end = begin + _size(target, self.unit)
    return slice(start, bisect.bisect_left(found.offsets, end))


def test_prompt(tail: str) -> str:
  """Returns a prompt that ends as those of a template, to find out with."""
  return _FIRST + _OTHERS + (tail or " two")


def alignment_of(found: Tokens, prompt: str) -> Alignment | None:
  """Returns how a server's tokens are matched, by those of `test_prompt`.

  It returns None if no token ends where the prompt does.
  """
  first = num_tokens_of(found.texts, _FIRST)
  second = num_tokens_of(found.texts, prompt)
  if second is None:
    return None
  if found.offsets is not None and first is not None:
    start, end = found.offsets[first], found.offsets[second]
    units: tuple[Unit, ...] = ("characters", "bytes")
    for unit in units:
      size = _size(prompt, unit)
      if end - start == size - len(_FIRST):
        return Alignment(unit, end - size)
  return Alignment("tokens")


def num_tokens_of(tokens: list[str], text: str) -> int | None:
  """Returns how many tokens make up a text that others follow.

  The visible characters of ASCII are compared, which every server decodes
  alike. So the text has to end in one. A token that begins all texts counts.
  None is returned where no token ends with the text.
  """
  wanted = visible(text)
  if not wanted or text[-1] != wanted[-1]:
    return None
  for num_special in (0, 1):
    done = 0
    for number, token in enumerate(tokens[num_special:], num_special + 1):
      own = visible(token)
      if not wanted.startswith(own, done):
        break
      done += len(own)
      if done == len(wanted):
        # A token of the next characters begins here, or none that is visible.
        return number
  return None


def visible(text: str) -> str:
  """Returns the visible characters of ASCII in a text, or in a token."""
  text = _BYTE.sub("", text)
  return "".join(one for one in text if "!" <= one <= "~")


def _size(text: str, unit: Unit) -> int:
  return len(text.encode() if unit == "bytes" else text)
