"""What a reader needs of its vocabulary, whichever kind of pieces it has."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

# T5's names of what stands for spans of a text, numbered from 0.
SENTINEL = "<extra_id_{}>"
_SENTINEL = re.compile(r"<extra_id_(0|[1-9]\d{0,3})>")


@runtime_checkable
class Vocabulary(Protocol):
  """Token ids of texts, in wordpieces or sentencepieces.

  Attributes:
    size: Number of ids. A model may have more, which no text reaches.
    digest: SHA-256 that identifies the vocabulary.
    pad_id, eos_id: Ids of padding, always 0, and of the end of a text.
    sentinels: Ids of `<extra_id_0>`, `<extra_id_1>`, …; empty without any.
  """

  size: int
  pad_id: int
  eos_id: int
  sentinels: Sequence[int]

  @property
  def digest(self) -> str: ...

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text and its sentinels, without an end."""
    ...

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids, without padding."""
    ...


def known_sentinels(id_of: Callable[[str], int | None]) -> Sequence[int]:
  """Returns the ids of the sentinels among pieces, from `<extra_id_0>` on."""
  found = list[int]()
  while (id := id_of(SENTINEL.format(len(found)))) is not None:
    found.append(id)
  return tuple(found)


def encode_parts(
  text: str, sentinels: Sequence[int], encode: Callable[[str, bool], list[int]]
) -> list[int]:
  """Returns the ids of the sentinels in a text and of the parts between them.

  `encode(part, follows)` encodes a part, which may follow a sentinel.
  """
  ids, start = list[int](), 0
  for found in _SENTINEL.finditer(text):
    if (number := int(found[1])) < len(sentinels):
      ids += encode(text[start : found.start()], start > 0)
      ids.append(sentinels[number])
      start = found.end()
  return ids + encode(text[start:], start > 0)


def encode_texts(
  vocabulary: Vocabulary, texts: Sequence[str], length: int
) -> Int[np.ndarray, "n {length}"]:
  """Returns the ids of texts with their end, int32, cut or padded to a length.

  encode_texts(vocabulary, batch.texts("question"), 32)
  """
  ids = np.full((len(texts), length), vocabulary.pad_id, np.int32)
  for row, text in zip(ids, texts, strict=True):
    found = [*vocabulary.encode(text)[: length - 1], vocabulary.eos_id]
    row[: len(found)] = found
  return ids
