"""Wordpieces, by TensorFlow Text.

`WordpieceVocabulary` normalizes text (`normalization`), splits it at white
space, punctuation and ideographs, and takes the longest known pieces, as BERT
does. Words of over 100 characters are `[UNK]`.

Normalization changes lengths ('é' loses a byte, 'ﬁ' becomes two letters), so
every token has its byte range in the *original* text, and an answer can be
shown as it was written. `vocabulary_files` reads and writes vocabularies, and
`vocabulary_training` learns them.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from jaxtyping import Bool, Int

from realm_jax.errors import RealmError
from realm_jax.text.languages import script
from realm_jax.text.normalization import Normalization, character_table

# As in realm_jax.inputs, jax uses the devices, also if a corpus is built beside
# a trainer.
tf.config.set_visible_devices([], "GPU")

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = "##"

LONGEST_WORD = 100


class VocabularyError(RealmError):
  """A vocabulary that cannot be used; the message says what to do."""


class Tokens(NamedTuple):
  """The tokens of n texts end to end; text i has `row_offsets[i:i + 2]`.

  `byte_ranges` are (start, limit) in each token's own text, UTF-8. Neither
  decreases along a text, and no range is empty: the pieces of one character
  ('½' gives `1 ##⁄ ##2`) share its range.
  """

  token_ids: Int[np.ndarray, " t"]
  row_offsets: Int[np.ndarray, " n+1"]
  byte_ranges: Int[np.ndarray, "t 2"]


def guess_normalization(pieces: Iterable[str]) -> Normalization:
  """Returns what pieces alone say: with capitals, they are of cased text."""
  # Special and unused pieces are in brackets.
  has_capitals = any(re.search(r"[A-Z]", p) and p[0] != "[" for p in pieces)
  return Normalization.of(cased=has_capitals)


class WordpieceVocabulary:
  """BERT's wordpieces, with offsets into the original text.

  Args:
    pieces: The pieces in the order of their ids.
    normalization: What is done to text before; None guesses it from the pieces.
  """

  def __init__(
    self, pieces: Iterable[str], normalization: Normalization | None = None
  ):
    self.pieces = tuple(pieces)
    self.normalization = normalization or guess_normalization(self.pieces)
    ids = {piece: index for index, piece in enumerate(self.pieces)}
    self.unk_id, self.mask_id = ids[UNK], ids[MASK]
    self.cls_id, self.sep_id = ids[CLS], ids[SEP]
    self._table = character_table(self.normalization)
    self._tokenizer = tf_text.FastWordpieceTokenizer(
      vocab=self.pieces,
      token_out_type=tf.int32,
      unknown_token=UNK,
      # In UTF-8.
      max_bytes_per_word=4 * LONGEST_WORD,
    )

  def __reduce__(self) -> tuple[Any, ...]:
    # TensorFlow's tokenizer cannot be pickled.
    return WordpieceVocabulary, (self.pieces, self.normalization)

  @property
  def cased(self) -> bool:
    """Whether text keeps its capitals."""
    return self.normalization.cased

  @functools.cached_property
  def sha256(self) -> str:
    """The hash that identifies the vocabulary.

    It is that of the joined pieces, after which the normalization is named
    unless the pieces say it.
    """
    lines = [*self.pieces]
    if self.normalization != guess_normalization(self.pieces):
      lines.append(repr(self.normalization))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()

  @functools.cached_property
  def is_continuation(self) -> Bool[np.ndarray, " v"]:
    """Whether each piece continues a word."""
    return np.array([p.startswith(CONTINUATION) for p in self.pieces])

  @functools.cached_property
  def _num_characters(self) -> Int[np.ndarray, " v"]:
    sizes = [len(piece.removeprefix(CONTINUATION)) for piece in self.pieces]
    return np.array(sizes, np.int32)

  @property
  def vocab_size(self) -> int:
    """The number of pieces."""
    return len(self.pieces)

  def encode(self, text: str) -> list[int]:
    """Returns the token ids of a text."""
    return self.tokenize_with_offsets([text]).token_ids.tolist()

  def encode_tf(self, texts: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    """Returns the token ids of a text, or a row of them for each of several."""
    if texts.shape.rank == 0:  # TensorFlow Text fails on a scalar.
      return self.encode_tf(texts[tf.newaxis])[0]
    found = self._tokenizer.tokenize(self._table.normalize_tf(texts))
    token_ids, is_kept = self._without_long_words(found.flat_values)
    return tf.ragged.boolean_mask(
      found.with_flat_values(token_ids), found.with_flat_values(is_kept)
    )

  def _without_long_words(
    self, token_ids: Int[tf.Tensor, " t"]
  ) -> tuple[Int[tf.Tensor, " t"], Bool[tf.Tensor, " t"]]:
    """Replaces words of over 100 characters by [UNK].

    Also returns which tokens are kept: of such a word, the first one.
    """
    is_first = ~tf.gather(tf.constant(self.is_continuation), token_ids)
    word = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    sizes = tf.gather(tf.constant(self._num_characters), token_ids)
    is_long = tf.gather(tf.math.segment_sum(sizes, word), word) > LONGEST_WORD
    return tf.where(is_long, self.unk_id, token_ids), is_first | ~is_long

  def encode_masked_tf(self, text: tf.Tensor) -> tf.Tensor:
    """Encodes a text in which `[MASK]` is the special piece, not a word."""
    parts = self.encode_tf(tf.strings.split([text], MASK)[0])
    masks = tf.fill([parts.nrows(), 1], self.mask_id)
    return tf.concat([parts, masks], axis=1).flat_values[:-1]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the words of token ids, without padding."""
    words = " ".join(self.pieces[i] for i in ids if i)
    return words.replace(f" {CONTINUATION}", "")

  def tokenize_with_offsets(self, texts: Sequence[str]) -> Tokens:
    """Tokenizes texts, which must have no lone surrogates."""
    normalized, sources = self._table.normalize(texts)
    ids, starts, limits = self._tokenizer.tokenize_with_offsets(
      tf.constant(normalized, tf.string)
    )
    row_offsets = np.asarray(ids.row_splits)
    # The bytes where tokens begin and end in all normalized texts.
    text_starts = np.cumsum([0, *map(len, normalized)])[:-1]
    text_start = np.repeat(text_starts, np.diff(row_offsets))
    first = text_start + starts.flat_values
    last = text_start + limits.flat_values - 1
    byte_ranges = np.stack([sources[first, 0], sources[last, 1]], axis=1)
    token_ids, is_kept = self._without_long_words(ids.flat_values)
    kept = np.flatnonzero(is_kept)
    # A word that becomes one token ends where its last piece did.
    last = np.append(kept, len(byte_ranges))[1:] - 1
    return Tokens(
      np.asarray(token_ids)[kept],
      np.searchsorted(kept, row_offsets),
      np.stack([byte_ranges[kept, 0], byte_ranges[last, 1]], axis=1),
    )

  def notes(self, text: str) -> list[str]:
    """Returns a sentence on the words of a text that are `[UNK]`, if any."""
    unknown = self._words(text)[1]
    return [f"the run does not know: {', '.join(unknown)}"] if unknown else []

  def require_known(self, text: str) -> None:
    """Raises `ValueError` if the words of a text are unknown, all of them."""
    known, unknown = self._words(text)
    letters = "".join(unknown)
    if letters and script(letters) and not script("".join(known)):
      raise RealmError(
        f"{text!r} has no word that the vocabulary can spell, which has other "
        f"letters (script: {script(letters)}); write in the language of the "
        "corpus"
      )

  def _words(self, text: str) -> tuple[list[str], list[str]]:
    """Returns what is known of a text, in pieces, and its unknown words."""
    tokens, encoded = self.tokenize_with_offsets([text]), text.encode()
    known, unknown = list[str](), list[str]()
    for token, (start, limit) in zip(
      tokens.token_ids, tokens.byte_ranges, strict=True
    ):
      words = unknown if token == self.unk_id else known
      words.append(encoded[start:limit].decode())
    return known, unknown
