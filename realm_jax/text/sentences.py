"""Sentence segmentation, by Wikimedia's `sentencex`.

It is told the language. Thai has no mark at the end of a sentence, and is split
by PyThaiNLP where it is installed. Otherwise, and in a few languages like it, a
sentence ends at the first white space after 80 characters.

In 1,014 paragraphs with 4,289 sentence starts, annotated by hand, sentencex
1.0.32 finds 4,171 and 21 wrong ones, blingfire 0.1.8 4,174 and 79, TensorFlow
Text's StateBasedSentenceBreaker 4,237 and 509, and these take 10 to 50 times as
long. A query must be a whole sentence, so a wrong break costs more than a
missed one.
"""

import functools
import importlib.util
import itertools
import re
from collections.abc import Iterator, Sequence

# Compiled from Rust, so it comes without types.
from sentencex import segment  # type: ignore

from realm_jax.text.languages import ENGLISH
from realm_jax.text.normalization import byte_positions

THAI = "th"
# Languages that sentencex does not split: Tibetan, Dzongkha, Khmer, Lao, Thai.
_BY_LENGTH = frozenset(["bo", "dz", "km", "lo", THAI])
_PARAGRAPH = re.compile(r".+?(?:\n\s*\n\s*|\Z)", re.DOTALL)
_LONG_ENOUGH = re.compile(r".{80,}?\s+|.+", re.DOTALL)
# Characters of a paragraph that are split at once. The time of sentencex grows
# with their square, to 20 seconds for 0.5 MB of Chinese.
_MOST_AT_ONCE = 8192


@functools.cache
def splits_thai() -> bool:
  """Returns whether PyThaiNLP is installed with what splits sentences."""
  names = ("pythainlp", "pycrfsuite")
  return all(importlib.util.find_spec(name) is not None for name in names)


def sentence_characters(
  text: str, language: str = ENGLISH
) -> list[tuple[int, int]]:
  """Returns the character ranges of the sentences, without outer white space.

  Only white space is between two ranges. A blank line ends a sentence, a
  single line end does not.
  """
  ranges, start = [], 0
  for limit in _ends(text, language):
    sentence = text[start:limit].rstrip()
    if sentence:
      first = limit - len(text[start:limit].lstrip())
      ranges.append((first, start + len(sentence)))
    start = limit
  return ranges


def _ends(text: str, language: str) -> Iterator[int]:
  """Yields where sentences end, and the white space after them."""
  # One paragraph at a time: in longer texts, sentencex drops some blank lines.
  for paragraph in _PARAGRAPH.finditer(text):
    start, limit = paragraph.span()
    while start < limit:
      window = text[start : min(start + _MOST_AT_ONCE, limit)]
      sizes = map(len, _segments(window, language)[:-1])
      ends = [start + size for size in itertools.accumulate(sizes)]
      if start + len(window) == limit:
        yield from (*ends, limit)
        break
      # What follows may change the last ones, as the end of a quotation does.
      # Where a sentence is longer than a quarter of a window, it is split on.
      middle, sure = start + len(window) // 2, start + len(window) * 3 // 4
      ends = [end for end in ends if end <= sure]
      yield from ends
      start = ends[-1] if ends and ends[-1] > middle else sure


def _segments(text: str, language: str) -> Sequence[str]:
  """Cuts a text at the ends of its sentences; nothing is left out."""
  if language == THAI and splits_thai():
    # Imported late: it is the extra `thai`.
    from pythainlp.tokenize import sent_tokenize  # type: ignore

    return sent_tokenize(text)
  if language in _BY_LENGTH:
    return _LONG_ENOUGH.findall(text)
  try:
    return segment(language, text)
  except BaseException as error:
    # The library fails so on a few texts with rare line ends. One of them must
    # not end a build of hours, so that it counts as one sentence.
    if type(error).__name__ != "PanicException":
      raise
    return [text]


def sentence_ranges(
  text: str, language: str = ENGLISH
) -> list[tuple[int, int]]:
  """Returns the byte ranges of the sentences: see `sentence_characters`."""
  ranges = sentence_characters(text, language)
  if text.isascii():
    return ranges
  positions = byte_positions(text).tolist()
  return [(positions[start], positions[limit]) for start, limit in ranges]
