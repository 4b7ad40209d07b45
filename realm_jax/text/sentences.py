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
import re

import numpy as np
from jaxtyping import Int

# Compiled from Rust, so it comes without types.
from sentencex import segment  # type: ignore

from realm_jax.text.languages import ENGLISH

THAI = "th"
# Languages that sentencex does not split: Tibetan, Dzongkha, Khmer, Lao, Thai.
_BY_LENGTH = frozenset(["bo", "dz", "km", "lo", THAI])
_PARAGRAPH = re.compile(r".+?(?:\n\s*\n\s*|\Z)", re.DOTALL)
_LONG_ENOUGH = re.compile(r".{80,}?\s+|.+", re.DOTALL)


@functools.cache
def splits_thai() -> bool:
  """Returns whether PyThaiNLP is installed with what splits sentences."""
  names = ("pythainlp", "pycrfsuite")
  return all(importlib.util.find_spec(name) is not None for name in names)


def byte_positions(text: str) -> Int[np.ndarray, " bounds"]:
  """Returns the UTF-8 byte of each character's start, and the total length."""
  encoded = np.frombuffer(text.encode("utf-8"), np.uint8)
  starts = np.flatnonzero((encoded & 0xC0) != 0x80)
  return np.append(starts, len(encoded))


def sentence_characters(
  text: str, language: str = ENGLISH
) -> list[tuple[int, int]]:
  """Returns the character ranges of the sentences, without outer white space.

  Only white space is between two ranges. A blank line ends a sentence, a
  single line end does not.
  """
  ranges, start = [], 0
  for sentence in _segments(text, language):
    limit = start + len(sentence.rstrip())
    after = start + len(sentence)
    start = after - len(sentence.lstrip())
    if start < limit:
      ranges.append((start, limit))
    start = after
  return ranges


def _segments(text: str, language: str) -> list[str]:
  """Cuts a text at the ends of its sentences; nothing is left out."""
  if language in _BY_LENGTH:
    split = _LONG_ENOUGH.findall
    if language == THAI and splits_thai():
      # Imported late: it is the extra `thai`.
      from pythainlp.tokenize import sent_tokenize as split  # type: ignore
    paragraphs = _PARAGRAPH.findall(text)
    return [part for paragraph in paragraphs for part in split(paragraph)]
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
  found = sentence_characters(text, language)
  if text.isascii():
    return found
  positions = byte_positions(text).tolist()
  return [(positions[start], positions[limit]) for start, limit in found]
