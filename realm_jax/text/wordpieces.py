"""Wordpieces, by TensorFlow Text.

`WordpieceVocabulary` is a seqio vocabulary over TensorFlow Text's
`FastBertTokenizer`. It lower-cases text, strips accents, splits at white space
and punctuation, and takes the longest known pieces, as BERT uncased does. (BERT
cased, which some taggers are, reads the text with its capitals and accents.)

Normalization changes lengths ('é' loses a byte, 'ﬁ' becomes two letters), so
every token has its byte range in the *original* text, and an answer can be
shown as it was written.
"""

import collections
import functools
import hashlib
import itertools
import string
import tempfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_text as tf_text
from etils import epath
from jaxtyping import Bool, Int
from tensorflow_text.tools.wordpiece_vocab import (
  wordpiece_tokenizer_learner_lib as learner,
)

# As in realm_jax.inputs, jax uses the devices, also if a corpus is built beside
# a trainer.
tf.config.set_visible_devices([], "GPU")

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = "##"
# What every trained vocabulary holds, as BERT's does, so that questions and
# other texts than those that it was trained on can be written in pieces.
_ASCII_PIECES = (
  *string.punctuation,
  *(start + c for start in ("", "##") for c in string.digits),
  *(start + c for start in ("", "##") for c in string.ascii_lowercase),
)

# Texts in one call of the tokenizer while counting words: enough to hide its
# fixed 20 ms, and few enough to need little memory.
_TEXTS_PER_CALL = 512


class VocabularyError(ValueError):
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
    text = path.read_bytes().decode("utf-8")
  except UnicodeDecodeError as error:
    raise VocabularyError(
      f"{path} is not UTF-8 (byte {error.start}); a vocabulary is plain text"
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


def vocabulary_of(
  pieces: Iterable[str], *, cased: bool = False
) -> "WordpieceVocabulary":
  """Makes a vocabulary that has no file."""
  with tempfile.NamedTemporaryFile() as file:
    write_pieces(file.name, pieces)
    return WordpieceVocabulary(file.name, cased=cased)


class WordpieceVocabulary(seqio.Vocabulary):
  """BERT's wordpieces, with offsets into the original text.

  They are uncased unless `cased` keeps capitals and accents; corpora have
  uncased ones.
  """

  def __init__(self, vocab_file: epath.PathLike, *, cased: bool = False):
    """Reads a vocabulary; raises `VocabularyError` if it is unusable."""
    super().__init__()
    self.cased = cased
    self.pieces = read_pieces(vocab_file)
    ids = {piece: index for index, piece in enumerate(self.pieces)}
    self._unk_id = ids[UNK]
    self.cls_id, self.sep_id, self.mask_id = ids[CLS], ids[SEP], ids[MASK]
    self._tokenizer = tf_text.FastBertTokenizer(
      vocab=self.pieces,
      token_out_type=tf.int32,
      unknown_token=UNK,
      lower_case_nfd_strip_accents=not cased,
    )

  @functools.cached_property
  def sha256(self) -> str:
    """The hash of the pieces: see `vocabulary_sha256`."""
    return vocabulary_sha256(self.pieces)

  @functools.cached_property
  def is_continuation(self) -> Bool[np.ndarray, " v"]:
    """Whether each piece continues a word."""
    return np.array([p.startswith(CONTINUATION) for p in self.pieces])

  def __eq__(self, other: object) -> bool:
    return isinstance(other, type(self)) and (self.pieces, self.cased) == (
      other.pieces,
      other.cased,
    )

  def __hash__(self) -> int:
    return hash(self.sha256)

  @property
  def eos_id(self) -> None:
    """None: [SEP] also occurs inside a sequence."""

  @property
  def unk_id(self) -> int:
    return self._unk_id

  @property
  def _base_vocab_size(self) -> int:
    return len(self.pieces)

  def _encode(self, s: str) -> list[int]:
    return self._tokenizer.tokenize([s]).flat_values.numpy().tolist()

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    if s.shape.rank == 0:  # TensorFlow Text fails on a scalar.
      return self._tokenizer.tokenize(s[tf.newaxis])[0]
    return cast(tf.RaggedTensor, self._tokenizer.tokenize(s))

  def encode_masked_tf(self, text: tf.Tensor) -> tf.Tensor:
    """Encodes a text in which `[MASK]` is the special piece, not a word."""
    parts = self._tokenizer.tokenize(tf.strings.split([text], MASK)[0])
    masks = tf.fill([parts.nrows(), 1], self.mask_id)
    return tf.concat([parts, masks], axis=1).flat_values[:-1]

  def _decode(self, ids: Sequence[int | np.integer]) -> str:
    words = " ".join(self.pieces[i] for i in ids if i != self.pad_id)
    return words.replace(f" {CONTINUATION}", "")

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    pieces = tf.gather(tf.constant(self.pieces), ids)
    pieces = tf.where(ids == self.pad_id, "", pieces)
    words = tf.strings.reduce_join(pieces, axis=-1, separator=" ")
    words = tf.strings.regex_replace(words, " +", " ")
    return tf.strings.strip(tf.strings.regex_replace(words, " ##", ""))

  def tokenize_with_offsets(self, texts: Sequence[str]) -> Tokens:
    """Tokenizes many texts in one call, since a call costs 20 ms.

    The texts must have no lone surrogates.
    """
    encoded = [text.encode("utf-8") for text in texts]
    ids, *bounds = self._tokenizer.tokenize_with_offsets(
      tf.constant(encoded, tf.string)
    )
    row_offsets = np.asarray(ids.row_splits)
    byte_ranges = np.stack([b.flat_values for b in bounds], 1).astype(np.int32)
    # All but the last piece of a normalized character have an empty range.
    empty = np.flatnonzero(byte_ranges[:, 1] <= byte_ranges[:, 0])
    rows = np.searchsorted(row_offsets, empty, side="right") - 1
    for row, token in zip(rows, empty, strict=True):
      start = int(byte_ranges[token, 0])
      character = encoded[row][start : start + 4].decode(errors="ignore")[0]
      byte_ranges[token, 1] = start + len(character.encode())
    return Tokens(np.asarray(ids.flat_values), row_offsets, byte_ranges)


def _count_words(texts: Iterable[str]) -> collections.Counter[str]:
  """Counts normalized words, split as the tokenizer splits them."""
  normalizer = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=True)
  # A vocabulary may not be empty, and no normalized text has this capital. So
  # no word has pieces, and each becomes one [UNK].
  splitter = tf_text.FastWordpieceTokenizer(
    vocab=[UNK, "A"], unknown_token=UNK, token_out_type=tf.int32
  )
  counts: collections.Counter[bytes] = collections.Counter()
  remaining = iter(texts)
  while batch := list(itertools.islice(remaining, _TEXTS_PER_CALL)):
    folded = normalizer.normalize(tf.constant(batch))
    _, starts, limits = splitter.tokenize_with_offsets(folded)
    for text, text_starts, text_limits in zip(
      folded.numpy(), starts.to_list(), limits.to_list(), strict=True
    ):
      counts.update(map(text.__getitem__, map(slice, text_starts, text_limits)))
  return collections.Counter(
    {word.decode("utf-8"): count for word, count in counts.items()}
  )


def train_vocabulary(texts: Iterable[str], size: int) -> list[str]:
  """Learns wordpieces from texts with TensorFlow Text's learner.

  The learner keeps every piece that occurs at least `threshold` times beyond
  its occurrences in longer pieces that were kept, so every *word* that occurs
  `threshold` times is one piece. This takes the lowest threshold whose
  vocabulary fits in `size`, special pieces and those of ASCII included; if all
  words fit, each is one piece. The texts are read once, and only word counts
  are in memory.

  Raises:
    VocabularyError: The texts have no words, or their letters do not fit in
      `size`.
  """
  counts = _count_words(texts)
  for piece in SPECIAL_PIECES:
    counts.pop(piece, None)
  if not counts:
    raise VocabularyError("the texts hold no words to learn wordpieces from")
  reserved = [*SPECIAL_PIECES, *_ASCII_PIECES]

  @functools.cache
  def learned(threshold: int) -> list[str]:
    if counts.keys() <= set(reserved):
      return reserved  # The learner fails where it has nothing to learn.
    return learner.learn(
      counts,
      size,
      reserved,
      upper_thresh=threshold,
      lower_thresh=threshold,
    )

  # Thresholds are doubled, because low ones are quick to learn. The learner
  # takes none above the count of the commonest word.
  highest = max(counts.values())
  too_low, fits = 0, 1
  while len(learned(fits)) > size:
    if fits == highest:
      raise VocabularyError(
        f"a vocabulary of {size} pieces is too small: ASCII's characters, the "
        f"texts' letters and their commonest word take {len(learned(fits))}; "
        "give at least that many"
      )
    too_low, fits = fits, min(2 * fits, highest)
  while fits - too_low > 1:
    threshold = (too_low + fits) // 2
    if len(learned(threshold)) <= size:
      fits = threshold
    else:
      too_low = threshold
  return learned(fits)
