"""Interfaces of vocabularies, for any kind of pieces."""

import abc
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.errors import RealmError

# T5's names of sentinels, which replace spans of a text, numbered from 0.
SENTINEL = "<extra_id_{}>"
_SENTINEL = re.compile(r"<extra_id_(0|[1-9]\d{0,3})>")

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES = (PAD, UNK, CLS, SEP, MASK)


class VocabularyError(RealmError):
  """A vocabulary cannot be used; the message says what to do."""


class Tokens(NamedTuple):
  """The tokens of n texts end to end; text i has `row_offsets[i:i + 2]`.

  `byte_ranges` are (start, limit) in each token's own text, UTF-8. Neither
  decreases along a text, and no range is empty: the pieces of one character
  ('½' gives `1 ##⁄ ##2`) share its range.
  """

  token_ids: Int[np.ndarray, " t"]
  row_offsets: Int[np.ndarray, " n+1"]
  byte_ranges: Int[np.ndarray, "t 2"]


@runtime_checkable
class Vocabulary(Protocol):
  """Token ids of texts, in wordpieces or sentencepieces.

  Attributes:
    size: Number of ids. A model may have more, which no text has.
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
    """Returns the ids of a text with sentinels, without an end token."""
    ...

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids, without padding."""
    ...


class BertVocabulary(abc.ABC):
  """A vocabulary for building a corpus, with BERT's special tokens.

  Attributes:
    is_continuation: Whether each piece continues a word.

  Args:
    pieces: The pieces in the order of their ids, in readable form.

  Raises:
    VocabularyError: A special piece is missing.
  """

  is_continuation: Bool[np.ndarray, " v"]

  def __init__(self, pieces: Iterable[str]):
    self.pieces = tuple(pieces)
    self.size = len(self.pieces)
    self._ids = {piece: index for index, piece in enumerate(self.pieces)}
    if missing := [piece for piece in SPECIAL_PIECES if piece not in self._ids]:
      raise VocabularyError(
        f"the vocabulary has no {', '.join(missing)}; want BERT's "
        f"{' '.join(SPECIAL_PIECES)}"
      )
    self.unk_id, self.mask_id = self._ids[UNK], self._ids[MASK]
    self.cls_id, self.sep_id = self._ids[CLS], self._ids[SEP]
    self.pad_id, self.eos_id = self._ids[PAD], self.sep_id
    # Megatron's T5 adds sentinels to BERT's pieces.
    self.sentinels = known_sentinels(self._ids.get)

  @property
  @abc.abstractmethod
  def digest(self) -> str:
    """The hash that identifies the vocabulary."""

  @abc.abstractmethod
  def tokenize_with_offsets(
    self, texts: Sequence[str], *, follows: bool = False
  ) -> Tokens:
    """Tokenizes texts, which must have no lone surrogates.

    If they `follow`, they continue a text, and byte pairs have no leading
    space.
    """

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of token ids, without padding."""

  def encode(self, text: str, *, follows: bool = False) -> list[int]:
    """Returns the token ids of a text and its sentinels, if there are any."""

    def encode(part: str, continues: bool) -> list[int]:
      goes_on = follows or continues
      tokens = self.tokenize_with_offsets([part], follows=goes_on)
      return tokens.token_ids.tolist()

    return encode_parts(text, self.sentinels, encode)

  def encode_masked(self, text: str) -> list[int]:
    """Encodes a text in which `[MASK]` is the special piece, not a word."""
    parts = [
      [*self.encode(part, follows=number > 0), self.mask_id]
      for number, part in enumerate(text.split(MASK))
    ]
    return [*itertools.chain.from_iterable(parts)][:-1]

  def notes(self, text: str) -> list[str]:
    """Returns a sentence about words of a text that are `[UNK]`, if any."""
    del text
    return []

  def require_known(self, text: str) -> None:
    """Raises a `RealmError` if all words of a text are unknown."""
    del text


def known_sentinels(id_of: Callable[[str], int | None]) -> Sequence[int]:
  """Returns the ids of the sentinels among pieces, from `<extra_id_0>` on."""
  ids = list[int]()
  while (id := id_of(SENTINEL.format(len(ids)))) is not None:
    ids.append(id)
  return tuple(ids)


def encode_parts(
  text: str, sentinels: Sequence[int], encode: Callable[[str, bool], list[int]]
) -> list[int]:
  """Returns the ids of the sentinels in a text and of the parts between them.

  `encode(part, follows)` encodes a part, which may follow a sentinel.
  """
  ids, start = list[int](), 0
  for match in _SENTINEL.finditer(text):
    if (number := int(match[1])) < len(sentinels):
      ids += encode(text[start : match.start()], start > 0)
      ids.append(sentinels[number])
      start = match.end()
  return ids + encode(text[start:], start > 0)


def encode_texts(
  vocabulary: Vocabulary, texts: Sequence[str], length: int
) -> Int[np.ndarray, "n {length}"]:
  """Returns ids of texts with the end token, truncated or padded to a length.

  encode_texts(vocabulary, batch.texts("question"), 32)
  """
  ids = np.full((len(texts), length), vocabulary.pad_id, np.int32)
  for row, text in zip(ids, texts, strict=True):
    text_ids = [*vocabulary.encode(text)[: length - 1], vocabulary.eos_id]
    row[: len(text_ids)] = text_ids
  return ids
