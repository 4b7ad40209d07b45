"""Wordpieces, by TensorFlow Text.

`WordpieceVocabulary` splits text at white space, punctuation and ideographs,
and takes the longest known pieces, as BERT does. An uncased vocabulary
lower-cases letters and strips accents first; one with capitals is cased, and
the text keeps both. Words of over 100 characters are `[UNK]`.

Normalization changes lengths ('é' loses a byte, 'ﬁ' becomes two letters), so
every token has its byte range in the *original* text, and an answer can be
shown as it was written. `vocabulary_training` learns vocabularies.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import regex
import tensorflow as tf
import tensorflow_text as tf_text
from etils import epath
from jaxtyping import Bool, Int

from realm_jax.errors import RealmError
from realm_jax.text.languages import script
from realm_jax.text.sentences import byte_positions

# As in realm_jax.inputs, jax uses the devices, also if a corpus is built beside
# a trainer.
tf.config.set_visible_devices([], "GPU")

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = "##"

LONGEST_WORD = 100
# Control characters, which BERT ignores, and a cased tokenizer here would split
# at. The syntax is both RE2's and Python's.
IGNORED = "[\ufffd" + r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\p{Cf}\p{Co}]"
_IGNORED_CHARACTER = regex.compile(IGNORED)


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


def check_pieces(pieces: Sequence[str], *, source: str) -> None:
  """Raises `VocabularyError` if `pieces` are no BERT vocabulary."""
  if missing := [piece for piece in SPECIAL_PIECES if piece not in pieces]:
    raise VocabularyError(
      f"{source} has no {', '.join(missing)}; a BERT vocabulary lists "
      f"{' '.join(SPECIAL_PIECES)}, one piece a line"
    )
  if pieces[0] != PAD:
    raise VocabularyError(
      f"{source} has {pieces[0]!r} on its first line; {PAD} must be there, "
      "because id 0 is padding everywhere"
    )
  line_of: dict[str, int] = {}
  for line, piece in enumerate(pieces, start=1):
    if not piece:
      raise VocabularyError(f"{source}, line {line}, is empty; remove it")
    if piece in line_of:
      raise VocabularyError(
        f"{source} has {piece!r} on line {line_of[piece]} and again on line "
        f"{line}; remove one"
      )
    line_of[piece] = line


def read_pieces(vocab_file: epath.PathLike) -> tuple[str, ...]:
  """Reads a vocabulary file, one piece a line; line n has id n - 1."""
  path = epath.Path(vocab_file)
  if not path.is_file():
    raise VocabularyError(
      f"no vocabulary at {path}; give BERT's vocab.txt, or train one with "
      "build_corpus --vocab=train:SIZE"
    )
  try:
    # Without the byte order mark that some editors write.
    text = path.read_bytes().decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise VocabularyError(
      f"{path} is not UTF-8 (byte {error.start}); convert it to UTF-8"
    ) from error
  # Not splitlines(): a piece may be one of Unicode's other line ends.
  pieces = tuple(text.replace("\r\n", "\n").removesuffix("\n").split("\n"))
  check_pieces(pieces, source=str(path))
  return pieces


def write_pieces(vocab_file: epath.PathLike, pieces: Iterable[str]) -> None:
  """Writes a vocabulary file for `read_pieces`, in the order of ids."""
  text = "\n".join(pieces) + "\n"
  epath.Path(vocab_file).write_bytes(text.encode("utf-8"))


def vocabulary_sha256(pieces: Iterable[str]) -> str:
  """Returns the hash that identifies a vocabulary: of its joined lines."""
  return hashlib.sha256("\n".join(pieces).encode()).hexdigest()


def has_capitals(pieces: Iterable[str]) -> bool:
  """Returns whether pieces have capitals, which make a vocabulary cased."""
  # Special and unused pieces are in brackets.
  return any(re.search(r"[A-Z]", p) and p[0] != "[" for p in pieces)


class WordpieceVocabulary:
  """BERT's wordpieces, with offsets into the original text.

  Args:
    pieces: The pieces in the order of their ids, as `read_pieces` reads them.
    cased: Whether text keeps its capitals and accents; by default, it does if
      pieces have capitals.
  """

  def __init__(self, pieces: Iterable[str], *, cased: bool | None = None):
    self.pieces = tuple(pieces)
    self.cased = has_capitals(self.pieces) if cased is None else cased
    ids = {piece: index for index, piece in enumerate(self.pieces)}
    self.unk_id, self.mask_id = ids[UNK], ids[MASK]
    self.cls_id, self.sep_id = ids[CLS], ids[SEP]
    # What a FastBertTokenizer joins, and gathers offsets of 15 times as slowly.
    self._normalizer = tf_text.FastBertNormalizer(
      lower_case_nfd_strip_accents=not self.cased
    )
    self._tokenizer = tf_text.FastWordpieceTokenizer(
      vocab=self.pieces,
      token_out_type=tf.int32,
      unknown_token=UNK,
      # In UTF-8.
      max_bytes_per_word=4 * LONGEST_WORD,
    )

  def __reduce__(self) -> tuple[Any, ...]:
    # TensorFlow's tokenizer cannot be pickled.
    made = functools.partial(WordpieceVocabulary, cased=self.cased)
    return made, (self.pieces,)

  @functools.cached_property
  def sha256(self) -> str:
    """The hash of the pieces: see `vocabulary_sha256`."""
    return vocabulary_sha256(self.pieces)

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
    if self.cased:
      texts = tf.strings.regex_replace(texts, IGNORED, "")
    found = self._tokenizer.tokenize(self._normalizer.normalize(texts))
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
    # Positions of the bytes of characters that are not ignored.
    read, read_bytes = list(texts), dict[int, np.ndarray]()
    for row, text in enumerate(texts) if self.cased else ():
      if _IGNORED_CHARACTER.search(text):
        read[row] = _IGNORED_CHARACTER.sub("", text)
        is_read = [not _IGNORED_CHARACTER.match(c) for c in text]
        sizes = np.diff(byte_positions(text))
        read_bytes[row] = np.flatnonzero(np.repeat(is_read, sizes))
    encoded = [text.encode("utf-8") for text in read]
    given = tf.constant(encoded, tf.string)
    # It is annotated as returning None.
    found: Any = self._normalizer.normalize_with_offsets(given)
    normalized, positions = found
    ids, *bounds = self._tokenizer.tokenize_with_offsets(normalized)
    row_offsets = np.asarray(ids.row_splits)
    # Bounds are in the normalized text, from whose bytes positions lead back.
    first = np.repeat(positions.row_splits[:-1], np.diff(row_offsets))
    in_text = np.asarray(positions.flat_values, np.int32)
    byte_ranges = np.stack([in_text[first + b.flat_values] for b in bounds], 1)
    # All but the last piece of a normalized character have an empty range.
    empty = np.flatnonzero(byte_ranges[:, 1] <= byte_ranges[:, 0])
    rows = np.searchsorted(row_offsets, empty, side="right") - 1
    for row, token in zip(rows, empty, strict=True):
      start = int(byte_ranges[token, 0])
      character = encoded[row][start : start + 4].decode(errors="ignore")[0]
      byte_ranges[token, 1] = start + len(character.encode())
    for row, kept_bytes in read_bytes.items():
      own = byte_ranges[slice(*row_offsets[row : row + 2])]
      own[:] = kept_bytes[own - [0, 1]] + [0, 1]
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
