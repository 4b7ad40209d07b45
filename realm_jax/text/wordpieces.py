"""Wordpieces, by TensorFlow Text.

`WordpieceVocabulary` is a seqio vocabulary over TensorFlow Text's
`FastBertTokenizer`. It splits text at white space, punctuation and ideographs,
and takes the longest known pieces, as BERT does. An uncased vocabulary is read
after letters are lower-cased and accents stripped; one with capitals is cased,
and the text keeps both. Words of over 100 characters are `[UNK]`.

Normalization changes lengths ('é' loses a byte, 'ﬁ' becomes two letters), so
every token has its byte range in the *original* text, and an answer can be
shown as it was written.
"""

import collections
import functools
import hashlib
import itertools
import re
import string
import tempfile
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import regex
import seqio
import tensorflow as tf
import tensorflow_text as tf_text
from absl import logging
from etils import epath
from jaxtyping import Bool, Int
from tensorflow_text.tools.wordpiece_vocab import (
  wordpiece_tokenizer_learner_lib as learner,
)

from realm_jax.text.languages import script
from realm_jax.text.sentences import byte_positions

# As in realm_jax.inputs, jax uses the devices, also if a corpus is built beside
# a trainer.
tf.config.set_visible_devices([], "GPU")

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = "##"

_LONGEST_WORD = 100
# Control characters, which BERT ignores, and a cased tokenizer here would split
# at. The syntax is both RE2's and Python's.
_IGNORED = "[\ufffd" + r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\p{Cf}\p{Co}]"
_IGNORED_CHARACTER = regex.compile(_IGNORED)
# What BERT splits to words of their own.
_IDEOGRAPH = re.compile(
  "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf"
  "\U0002f800-\U0002fa1f]"
)

# Texts in one call of the tokenizer while counting words: enough to hide its
# fixed 20 ms, and few enough to need little memory.
_TEXTS_PER_CALL = 512
# Characters of a word that is cut before pieces are learned from it, unless it
# is of ASCII, and the number of such words.
_LONG_TO_LEARN = 24
_MOST_LONG_WORDS = 20_000


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


def has_capitals(pieces: Iterable[str]) -> bool:
  """Returns whether pieces are those of a cased vocabulary."""
  # Special and unused pieces are in brackets.
  return any(re.search(r"[A-Z]", p) and p[0] != "[" for p in pieces)


def vocabulary_of(
  pieces: Iterable[str], *, cased: bool | None = None
) -> "WordpieceVocabulary":
  """Makes a vocabulary that has no file."""
  with tempfile.NamedTemporaryFile() as file:
    write_pieces(file.name, pieces)
    return WordpieceVocabulary(file.name, cased=cased)


class WordpieceVocabulary(seqio.Vocabulary):
  """BERT's wordpieces, with offsets into the original text.

  `cased` tells whether text keeps its capitals and accents; by default, it does
  if pieces have capitals.
  """

  def __init__(self, vocab_file: epath.PathLike, *, cased: bool | None = None):
    """Reads a vocabulary; raises `VocabularyError` if it is unusable."""
    super().__init__()
    self.pieces = read_pieces(vocab_file)
    self.cased = has_capitals(self.pieces) if cased is None else cased
    ids = {piece: index for index, piece in enumerate(self.pieces)}
    self._unk_id = ids[UNK]
    self.cls_id, self.sep_id, self.mask_id = ids[CLS], ids[SEP], ids[MASK]
    self._tokenizer = tf_text.FastBertTokenizer(
      vocab=self.pieces,
      token_out_type=tf.int32,
      unknown_token=UNK,
      lower_case_nfd_strip_accents=not self.cased,
      # In UTF-8.
      max_bytes_per_word=4 * _LONGEST_WORD,
    )

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
    return self.tokenize_with_offsets([s]).token_ids.tolist()

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    if s.shape.rank == 0:  # TensorFlow Text fails on a scalar.
      return self._encode_tf(s[tf.newaxis])[0]
    if self.cased:
      s = tf.strings.regex_replace(s, _IGNORED, "")
    found = self._tokenizer.tokenize(s)
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
    is_long = tf.gather(tf.math.segment_sum(sizes, word), word) > _LONGEST_WORD
    return tf.where(is_long, self._unk_id, token_ids), is_first | ~is_long

  def encode_masked_tf(self, text: tf.Tensor) -> tf.Tensor:
    """Encodes a text in which `[MASK]` is the special piece, not a word."""
    parts = self._encode_tf(tf.strings.split([text], MASK)[0])
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
    read, read_bytes = list(texts), dict[int, np.ndarray]()
    for row, text in enumerate(texts) if self.cased else ():
      if _IGNORED_CHARACTER.search(text):
        read[row] = _IGNORED_CHARACTER.sub("", text)
        read_bytes[row] = _read_bytes(text)
    encoded = [text.encode("utf-8") for text in read]
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
    for row, positions in read_bytes.items():
      own = byte_ranges[slice(*row_offsets[row : row + 2])]
      own[:] = positions[own - [0, 1]] + [0, 1]
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
      raise ValueError(
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
      words = unknown if token == self._unk_id else known
      words.append(encoded[start:limit].decode())
    return known, unknown


def _read_bytes(text: str) -> Int[np.ndarray, " b"]:
  """Returns the positions of the bytes of characters that are not ignored."""
  is_read = [not _IGNORED_CHARACTER.match(character) for character in text]
  return np.flatnonzero(np.repeat(is_read, np.diff(byte_positions(text))))


def _count_words(
  texts: Iterable[str], *, cased: bool
) -> collections.Counter[str]:
  """Counts normalized words, split as the tokenizer splits them."""
  normalizer = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=True)
  # A vocabulary may not be empty. So each word becomes one piece, "A" or [UNK].
  splitter = tf_text.FastWordpieceTokenizer(
    vocab=[UNK, "A"], unknown_token=UNK, token_out_type=tf.int32
  )
  counts: collections.Counter[bytes] = collections.Counter()
  remaining = iter(texts)
  while batch := list(itertools.islice(remaining, _TEXTS_PER_CALL)):
    folded = tf.constant(batch)
    if cased:
      folded = tf.strings.regex_replace(folded, _IGNORED, "")
    else:
      folded = normalizer.normalize(folded)
    _, starts, limits = splitter.tokenize_with_offsets(folded)
    for text, text_starts, text_limits in zip(
      folded.numpy(), starts.to_list(), limits.to_list(), strict=True
    ):
      counts.update(map(text.__getitem__, map(slice, text_starts, text_limits)))
  return collections.Counter(
    {word.decode("utf-8"): count for word, count in counts.items()}
  )


def train_vocabulary(
  texts: Iterable[str], size: int, *, cased: bool = False
) -> list[str]:
  """Learns wordpieces from texts with TensorFlow Text's learner.

  ASCII's characters are always pieces, and so are the commonest of the others,
  in up to half of the slots that are left. The learner keeps every piece that
  occurs at least `threshold` times beyond its occurrences in longer pieces that
  were kept, so every *word* that occurs `threshold` times is one piece, and so
  is every ideograph. This takes the lowest threshold whose vocabulary fits in
  `size`, and fills it with the characters that are left and then with pieces of
  the next lower one; if all words fit, each is one piece. The texts are read
  once, and only word counts are in memory.

  Args:
    texts: Texts of the corpus.
    size: Largest number of pieces, special ones included.
    cased: Whether the pieces keep capitals and accents.

  Raises:
    VocabularyError: The texts have no words, or `size` is too small.
  """
  counts = _count_words(texts, cased=cased)
  for piece in SPECIAL_PIECES:
    counts.pop(piece, None)
  if not counts:
    raise VocabularyError("the texts hold no words to learn wordpieces from")
  # With ASCII's, as BERT's have them, questions and other texts than those that
  # a vocabulary was trained on can be written in pieces.
  letters = string.ascii_letters if cased else string.ascii_lowercase
  reserved = [
    *(*SPECIAL_PIECES, *string.punctuation),
    *(start + c for start in ("", CONTINUATION) for c in string.digits),
    *(start + c for start in ("", CONTINUATION) for c in letters),
  ]
  characters = collections.Counter[str]()
  for word, count in counts.items():
    for character in word:
      characters[character] += count
  commonest = sorted(characters, key=lambda c: (-characters[c], c))
  kept = _kept_characters(commonest, reserved, size)
  highest = max(counts.values())
  ideographs = [
    (word, counts.pop(word)) for word in [*counts] if _IDEOGRAPH.match(word)
  ]
  ideographs.sort(key=lambda item: (-item[1], item[0]))
  counts = _learnable(counts, kept)

  @functools.cache
  def learned(threshold: int) -> list[str]:
    pieces = reserved
    # The learner fails where it has nothing to learn.
    if not counts.keys() <= set(reserved):
      pieces = learner.learn(
        counts,
        size,
        reserved,
        upper_thresh=threshold,
        lower_thresh=threshold,
        max_unique_chars=size,
      )
    more = [c for c, n in ideographs if c in kept or n >= threshold]
    for character in sorted(kept.difference(more)):
      more += _forms(character)
    return [*dict.fromkeys([*pieces, *more])]

  # Thresholds are doubled, because low ones are quick to learn. The learner
  # takes none above the count of the commonest word.
  too_low, fits = 0, 1
  while len(learned(fits)) > size:
    if fits == highest:
      raise VocabularyError(
        f"a vocabulary of {size} pieces is too small: ASCII's characters and "
        f"the texts' commonest word take {len(learned(fits))}; give at least "
        "that many"
      )
    too_low, fits = fits, min(2 * fits, highest)
  while fits - too_low > 1:
    threshold = (too_low + fits) // 2
    if len(learned(threshold)) <= size:
      fits = threshold
    else:
      too_low = threshold
  rest = [form for character in commonest for form in _forms(character)]
  rest += learned(too_low) if too_low else []
  pieces = [*dict.fromkeys([*learned(fits), *rest])][:size]
  covered = sum(characters[piece] for piece in pieces)
  logging.info(
    "The vocabulary has %d pieces, and %.3f %% of the text's characters",
    len(pieces),
    100 * covered / characters.total(),
  )
  return pieces


def _forms(character: str) -> list[str]:
  """Returns the pieces of a character; ideographs and punctuation are words."""
  is_word = (
    _IDEOGRAPH.match(character)
    or character in string.punctuation
    or unicodedata.category(character).startswith("P")
  )
  return [character] if is_word else [character, CONTINUATION + character]


def _kept_characters(
  commonest: Sequence[str], reserved: Sequence[str], size: int
) -> set[str]:
  """Returns the commonest characters, which become pieces of their own.

  They take at most half of the slots that are not reserved.
  """
  free = (size - len(reserved)) // 2
  kept = set(reserved).intersection(commonest)
  for character in commonest:
    if character not in kept:
      free -= len(_forms(character))
      if free < 0:
        break
      kept.add(character)
  return kept


def _learnable(
  counts: collections.Counter[str], kept: set[str]
) -> collections.Counter[str]:
  """Returns the words that pieces are learned from.

  Their characters are all kept. Texts without spaces have few words twice, and
  the learner takes minutes and gigabytes for long ones: these are cut, and
  sampled if they are many.
  """
  learnable = collections.Counter[str]()
  long_words = []
  for word, count in counts.items():
    if kept.issuperset(word):
      if word.isascii() or len(word) <= _LONG_TO_LEARN:
        learnable[word] = count
      elif len(word) <= _LONGEST_WORD:
        long_words.append(word)
  stride = len(long_words) // _MOST_LONG_WORDS + 1
  for word in long_words[::stride]:
    for start in range(0, len(word), _LONG_TO_LEARN):
      part = word[start : start + _LONG_TO_LEARN]
      learnable[part] += stride * counts[word]
  return learnable
