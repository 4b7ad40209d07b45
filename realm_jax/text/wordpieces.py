"""BERT's wordpieces, with their positions in the text.

`WordpieceVocabulary` normalizes text (`normalization`), splits it at white
space, punctuation and ideographs, and takes the longest known pieces, as BERT
does. Words of over 100 characters are `[UNK]`.

Normalization changes lengths ('é' loses a byte, 'ﬁ' becomes two letters), so
every token has its byte range in the *original* text, and an answer can be
shown in its original form. `vocabulary_files` reads and writes vocabularies,
and `vocabulary_training` learns them.
"""

import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from realm_jax.errors import RealmError
from realm_jax.text.languages import script
from realm_jax.text.normalization import Normalization, character_table
from realm_jax.text.vocabulary import BertVocabulary, Tokens

CONTINUATION = "##"

LONGEST_WORD = 100
# Number of words in the cache of splits, about 200 bytes each. It covers nearly
# all words of a text.
_REMEMBERED_WORDS = 1 << 17


def guess_normalization(pieces: Iterable[str]) -> Normalization:
  """Guesses the normalization: pieces with capitals are for cased text."""
  # Special and unused pieces are in brackets.
  has_capitals = any(re.search(r"[A-Z]", p) and p[0] != "[" for p in pieces)
  return Normalization.of(cased=has_capitals)


class WordpieceVocabulary(BertVocabulary):
  """BERT's wordpieces, with offsets into the original text.

  Args:
    pieces: The pieces in the order of their ids.
    normalization: Normalization of text; None guesses it from the pieces.
  """

  def __init__(
    self, pieces: Iterable[str], normalization: Normalization | None = None
  ):
    super().__init__(pieces)
    self.normalization = normalization or guess_normalization(self.pieces)
    self.is_continuation = np.array(
      [piece.startswith(CONTINUATION) for piece in self.pieces]
    )
    self._table = character_table(self.normalization)
    sizes = [len(piece.removeprefix(CONTINUATION)) for piece in self.pieces]
    self._num_characters = np.array(sizes)
    self._longest_piece = max(sizes)
    self._pieces_of = functools.lru_cache(_REMEMBERED_WORDS)(self._split)

  def __reduce__(self) -> tuple[Any, ...]:
    # Another process rebuilds the tables and the cache.
    return WordpieceVocabulary, (self.pieces, self.normalization)

  @property
  def cased(self) -> bool:
    """Whether text keeps its capitals."""
    return self.normalization.cased

  @functools.cached_property
  def digest(self) -> str:
    """Hash that identifies the vocabulary.

    It covers the joined pieces, and the normalization, unless that is the one
    guessed from the pieces.
    """
    lines = [*self.pieces]
    if self.normalization != guess_normalization(self.pieces):
      lines.append(repr(self.normalization))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()

  def _split(self, word: str) -> Sequence[int]:
    """Returns the longest known pieces of a word, or [UNK]."""
    token_ids, start, prefix = list[int](), 0, ""
    if len(word) > LONGEST_WORD:
      return [self.unk_id]
    while start < len(word):
      for limit in range(
        min(len(word), start + self._longest_piece), start, -1
      ):
        token = self._ids.get(prefix + word[start:limit])
        if token is not None:
          break
      else:
        return [self.unk_id]
      token_ids.append(token)
      start, prefix = limit, CONTINUATION
    return token_ids

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the words of token ids, without padding."""
    words = " ".join(self.pieces[i] for i in ids if i)
    return words.replace(f" {CONTINUATION}", "")

  def tokenize_with_offsets(
    self, texts: Sequence[str], *, follows: bool = False
  ) -> Tokens:
    """Tokenizes texts, which must have no lone surrogates."""
    del follows
    normalized = self._table.normalize(texts)
    words, starts, limits = normalized.words()
    pieces = [*map(self._pieces_of, words)]
    num_pieces = np.fromiter(map(len, pieces), np.int64, len(pieces))
    token_ids = np.fromiter(itertools.chain.from_iterable(pieces), np.int32)
    # Tokens are consecutive within words. [UNK] covers its whole word.
    sizes, word_sizes = self._num_characters[token_ids], limits - starts
    unknown = np.flatnonzero(token_ids == self.unk_id)
    sizes[unknown] = np.repeat(word_sizes, num_pieces)[unknown]
    last = np.cumsum(sizes)
    last += np.repeat(limits - np.cumsum(word_sizes), num_pieces)
    first = last - sizes
    row_offsets = np.searchsorted(first, normalized.bounds)
    byte_ranges = np.stack(
      [normalized.starts[first], normalized.limits[last - 1]], axis=1
    )
    text_starts = np.repeat(normalized.text_starts, np.diff(row_offsets))
    byte_ranges -= text_starts[:, np.newaxis]
    return Tokens(token_ids, row_offsets, byte_ranges)

  def notes(self, text: str) -> list[str]:
    """Returns a sentence about words of a text that are `[UNK]`, if any."""
    unknown = self._words(text)[1]
    return [f"the run does not know: {', '.join(unknown)}"] if unknown else []

  def require_known(self, text: str) -> None:
    """Raises a `RealmError` if all words of a text are unknown."""
    known, unknown = self._words(text)
    letters = "".join(unknown)
    if letters and script(letters) and not script("".join(known)):
      raise RealmError(
        f"{text!r} has no word that the vocabulary can spell, which has other "
        f"letters (script: {script(letters)}); write in the language of the "
        "corpus"
      )

  def _words(self, text: str) -> tuple[list[str], list[str]]:
    """Returns the known pieces of a text, and its unknown words."""
    tokens, encoded = self.tokenize_with_offsets([text]), text.encode()
    known, unknown = list[str](), list[str]()
    for token, (start, limit) in zip(
      tokens.token_ids, tokens.byte_ranges, strict=True
    ):
      words = unknown if token == self.unk_id else known
      words.append(encoded[start:limit].decode())
    return known, unknown
