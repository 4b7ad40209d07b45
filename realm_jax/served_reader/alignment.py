"""Finds the target's tokens among a server's tokens of a text.

A server may return the offset of each token (`text_offset`), in characters or
in bytes, possibly after a beginning-of-text token or a space that it has
prepended. Or its offsets are useless, because it decodes each token separately.
A test text with characters of several bytes reveals which of these holds.
"""

import bisect
import re
from typing import Literal, NamedTuple

Unit = Literal["characters", "bytes", "tokens"]
# Name of a token for a single byte.
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>|bytes:.*")
# Characters of two and three bytes follow the first words.
_FIRST, _OTHERS = "One:", " Zürich, 東京 and naïve"


class Tokens(NamedTuple):
  """The tokens of a text, with the model's log-probabilities.

  Attributes:
    texts: Texts of the tokens, as the server decodes them.
    log_probs: log p of each token given the ones before; None for the first.
    offsets: Offset of each token, if the server returns them.
    num_generated: Number of generated tokens at the end, after the text.
    num_billed: Number of tokens for which the request is billed.
  """

  texts: list[str]
  log_probs: list[float | None]
  offsets: list[int] | None
  num_generated: int
  num_billed: int


class Alignment(NamedTuple):
  """How the tokens of a server are matched with a text.

  Attributes:
    unit: Unit of offsets; `tokens` if the tokens' texts are compared instead.
    shift: Offset of the text's first character.
  """

  unit: Unit
  shift: int = 0

  def target_of(self, tokens: Tokens, prompt: str, target: str) -> slice | None:
    """Returns the target's tokens, after a prompt.

    Returns None if no token ends at the end of the prompt.
    """
    if self.unit == "tokens" or tokens.offsets is None:
      start = num_tokens_of(tokens.texts, prompt)
      stop = len(tokens.texts) - tokens.num_generated
      return None if start is None else slice(start, stop)
    begin = self.shift + _size(prompt, self.unit)
    start = bisect.bisect_left(tokens.offsets, begin)
    if tokens.offsets[start : start + 1] != [begin]:
      return None
    end = begin + _size(target, self.unit)
    return slice(start, bisect.bisect_left(tokens.offsets, end))


def test_prompt(tail: str) -> str:
  """Returns a test prompt that ends like the prompts of a template."""
  return _FIRST + _OTHERS + (tail or " two")


def alignment_of(tokens: Tokens, prompt: str) -> Alignment | None:
  """Determines the alignment from a server's tokens of `test_prompt`.

  Returns None if no token ends at the end of the prompt.
  """
  first = num_tokens_of(tokens.texts, _FIRST)
  second = num_tokens_of(tokens.texts, prompt)
  if second is None:
    return None
  if tokens.offsets is not None and first is not None:
    start, end = tokens.offsets[first], tokens.offsets[second]
    units: tuple[Unit, ...] = ("characters", "bytes")
    for unit in units:
      size = _size(prompt, unit)
      if end - start == size - len(_FIRST):
        return Alignment(unit, end - size)
  return Alignment("tokens")


def num_tokens_of(tokens: list[str], text: str) -> int | None:
  """Returns the number of tokens of a text at the beginning of `tokens`.

  Compares visible ASCII characters, which every server decodes in the same way,
  so the text must end in one. A beginning-of-text token counts. Returns None if
  no token ends at the end of the text.
  """
  characters = visible(text)
  if not characters or text[-1] != characters[-1]:
    return None
  for num_special in (0, 1):
    done = 0
    for number, token in enumerate(tokens[num_special:], num_special + 1):
      part = visible(token)
      if not characters.startswith(part, done):
        break
      done += len(part)
      if done == len(characters):
        # The next token has later characters, or no visible ones.
        return number
  return None


def visible(text: str) -> str:
  """Returns the visible ASCII characters in a text or a token."""
  text = _BYTE.sub("", text)
  return "".join(one for one in text if "!" <= one <= "~")


def _size(text: str, unit: Unit) -> int:
  return len(text.encode() if unit == "bytes" else text)
