"""What a reader needs of its vocabulary, whichever kind of pieces it has.

Sentinels stand for spans of a text, as T5 has them: `<extra_id_0>` for the
first, and so on. They are written in texts, and are one token each.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

_SENTINEL = re.compile(r"<extra_id_(0|[1-9]\d{0,3})>")


@runtime_checkable
class Vocabulary(Protocol):
  """Token ids of texts: wordpieces, or sentencepieces."""

  # Ids of padding, which is always 0, and of the end of a text.
  pad_id: int
  eos_id: int
  # Ids of `<extra_id_0>`, `<extra_id_1>`, …; empty if there are none.
  sentinels: Sequence[int]

  @property
  def size(self) -> int:
    """The number of ids. A model may have more, which no text reaches."""
    ...

  @property
  def digest(self) -> str:
    """The SHA-256 that identifies the vocabulary."""
    ...

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text and its sentinels, without an end."""
    ...

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids, without padding."""
    ...


def sentinel(number: int) -> str:
  """Returns how a sentinel is written."""
  return f"<extra_id_{number}>"


def known_sentinels(id_of: Callable[[str], int | None]) -> tuple[int, ...]:
  """Returns the ids of the sentinels among pieces, from `<extra_id_0>` on."""
  ids = map(id_of, map(sentinel, itertools.count()))
  return tuple(itertools.takewhile(lambda found: found is not None, ids))


def split_at_sentinels(text: str, num_sentinels: int) -> Iterator[str | int]:
  """Yields the parts of a text and, between them, numbers of sentinels."""
  start = 0
  for found in _SENTINEL.finditer(text):
    if (number := int(found[1])) < num_sentinels:
      yield text[start : found.start()]
      yield number
      start = found.end()
  yield text[start:]


def encode_texts(
  vocabulary: Vocabulary,
  texts: Sequence[str] | Sequence[bytes],
  length: int,
  *,
  add_eos: bool = True,
) -> Int[np.ndarray, "n {length}"]:
  """Returns the ids of texts, int32, cut or padded to a length.

  With `add_eos`, the end follows each text, also one that is cut. The texts of
  a batch are `Batch.texts("question")`, `Batch.answers`, and those of
  `inputs.batch.texts_with_sentinels`.

      encode_texts(corpus.view("t5").vocabulary, ["who?", "when?"], 32)
  """
  ids = np.full((len(texts), length), vocabulary.pad_id, np.int32)
  for row, text in zip(ids, texts, strict=True):
    text = text.decode() if isinstance(text, bytes) else text
    found = vocabulary.encode(text)[: length - add_eos]
    found += [vocabulary.eos_id] * add_eos
    row[: len(found)] = found
  return ids
