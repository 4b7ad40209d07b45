"""Sentences: the one file that knows the sentence segmenter.

We use Wikimedia's `sentencex`. On the 1,014 QED paragraphs, whose 4,289
sentence starts were marked by hand, the candidates found:

| segmenter | right | wrong | missed | paragraphs/s |
| --- | --- | --- | --- | --- |
| sentencex 1.0.32 | 4,171 | 21 | 118 | 100,000 |
| blingfire 0.1.8 | 4,174 | 79 | 115 | 9,000 |
| TensorFlow Text, StateBasedSentenceBreaker | 4,237 | 509 | 52 | 2,000 |

TensorFlow Text's breaker stops inside `19.8`, `e.g.` and `index.html` and after
`U.S.` and `St.`; a query must be a whole sentence, so a false break costs more
than a missed one.
"""

import numpy as np
from jaxtyping import Int

# Compiled from Rust, so it comes without types.
from sentencex import get_sentence_boundaries  # type: ignore


def byte_positions(text: str) -> Int[np.ndarray, " characters+1"]:
  """The UTF-8 byte at which each character starts, and the text's length."""
  encoded = np.frombuffer(text.encode("utf-8"), np.uint8)
  starts = np.flatnonzero((encoded & 0xC0) != 0x80)
  return np.append(starts, len(encoded))


def sentence_characters(text: str) -> list[tuple[int, int]]:
  """Character ranges of the sentences, in order, without the space around.

  What lies between two ranges is white space only. A blank line ends a
  sentence, a line end alone does not.
  """
  ranges = []
  for boundary in get_sentence_boundaries("en", text):
    start, limit = boundary["start_index"], boundary["end_index"]
    sentence = text[start:limit]
    start += len(sentence) - len(sentence.lstrip())
    limit -= len(sentence) - len(sentence.rstrip())
    if start < limit:
      ranges.append((start, limit))
  return ranges


def sentence_ranges(text: str) -> Int[np.ndarray, "s 2"]:
  """Byte ranges of the sentences: see `sentence_characters`."""
  ranges = np.array(sentence_characters(text), np.int64).reshape(-1, 2)
  return ranges if text.isascii() else byte_positions(text)[ranges]
