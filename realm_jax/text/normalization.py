"""Normalization of text before it is split into wordpieces.

Models differ in what they make of capitals, accents and compatibility
characters, and a model reads only the pieces that it was trained with:

| normalizer | capitals and accents | ß ½ ﬁ ς | models |
| --- | --- | --- | --- |
| `bert` | each as `Normalization` says | as they are | BERT, Hugging Face |
| `tensorflow_text` | removed by NFKC case folding | ss 1⁄2 fi σ | ORQA, REALM |

Every normalizer maps one character at a time. So a table of Unicode holds all
of it, and gives the place in the original text of each normalized character.
(Marks and punctuation that are newer than Unicode 8 are read by their present
properties. Hugging Face's tokenizers know an older Unicode.)
"""

import dataclasses
import functools
import itertools
import sys
import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import regex
import tensorflow as tf
import tensorflow_text as tf_text
from jaxtyping import Int

from realm_jax.errors import RealmError
from realm_jax.settings import require_valid

# Control and format characters and private use, which BERT ignores.
_IGNORED = regex.compile(
  "[\ufffd" + r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\p{Cf}\p{Co}]"
)
# Marks that can be seen, such as accents.
_DRAWN_MARK = regex.compile(r"(?!\p{DI})\p{M}")
_UTF32 = "utf-32-le"
# All characters except ideographs and private planes, and those among them that
# may change: asking a normalizer about every character takes a second.
_RANGES = (
  (0, 0x3400),
  (0xA000, 0xD800),
  (0xE000, 0x20000),
  (0x2F800, 0x2FA20),
  (0xE0000, 0xE1000),
)
_CHANGEABLE = regex.compile(
  r"[\p{M}\p{Z}\p{Cc}\p{Cf}\p{Co}\p{DI}\p{NFKD_QC=No}\p{CWCF}\p{CWL}\ufffd]"
)

Normalizer = Literal["bert", "tensorflow_text"]


@dataclasses.dataclass(frozen=True)
class Normalization:
  """What is done to text before it is split, as `vocab.json` holds it.

  Attributes:
    normalizer: `bert` or `tensorflow_text`, which knows only lower case without
      accents.
    lowercase: Whether letters become lower case.
    strip_accents: Whether accents are removed.
  """

  normalizer: Normalizer = "tensorflow_text"
  lowercase: bool = True
  strip_accents: bool = True

  def __post_init__(self) -> None:
    require_valid(self)
    is_folded = self.lowercase and self.strip_accents
    if self.normalizer == "tensorflow_text" and not is_folded:
      raise RealmError(
        "the normalizer tensorflow_text always removes capitals and accents; "
        "write bert for another one"
      )

  @property
  def cased(self) -> bool:
    """Whether text keeps its capitals."""
    return not self.lowercase

  @classmethod
  def of(
    cls, *, cased: bool, normalizer: Normalizer = "tensorflow_text"
  ) -> "Normalization":
    """Returns BERT's for cased text, and a normalizer's usual one otherwise."""
    return cls("bert", False, False) if cased else cls(normalizer)


class NormalizedTexts(NamedTuple):
  """Normalized texts, and where their bytes come from.

  Attributes:
    texts: The normalized texts in UTF-8.
    sources: For each byte of these texts, one after the other, the bytes
      (start, limit) of its own original text that became its character. They
      include accents that were removed, and neither begin nor end with
      characters that nobody sees.
  """

  texts: Sequence[bytes]
  sources: Int[np.ndarray, "b 2"]


class CharacterTable:
  """A normalizer as a table of Unicode."""

  def __init__(self, normalization: Normalization):
    changes = _changes(normalization)
    lengths = [len(text) for text in changes.values()]
    # How many characters each one becomes: one, if nothing else is said. That
    # one, or the place of several among `_values`.
    self._sizes = np.ones(sys.maxunicode + 1, np.int32)
    self._first = np.arange(sys.maxunicode + 1, dtype=np.int32)
    self._values = _codes([*changes.values()])
    first = np.cumsum([0, *lengths], dtype=np.int32)[:-1]
    self._sizes[[*changes]] = lengths
    is_one = np.array(lengths) == 1
    first[is_one] = self._values[first[is_one]]
    self._first[[*changes]] = first
    self._is_removed_mark = np.zeros(sys.maxunicode + 1, bool)
    self._is_removed_mark[[*changes]] = [
      not text and bool(_DRAWN_MARK.match(chr(code)))
      for code, text in changes.items()
    ]

  def normalize(self, texts: Sequence[str]) -> NormalizedTexts:
    """Normalizes texts, which must have no lone surrogates."""
    codes = _codes(texts)
    text_bounds = np.cumsum([0, *map(len, texts)])
    byte_bounds = np.append(0, np.cumsum(_utf8_sizes(codes)))
    own_start = np.repeat(byte_bounds[text_bounds[:-1]], np.diff(text_bounds))
    ranges = np.stack([byte_bounds[:-1], byte_bounds[1:]], axis=1)
    ranges -= own_start[:, None]
    values, sizes = self._first[codes], self._sizes[codes]
    if (sizes != 1).any():
      marks = np.flatnonzero(self._is_removed_mark[codes])
      _add_removed_marks(ranges, marks, sizes, text_bounds)
      bounds = np.append(0, np.cumsum(sizes))
      source = np.repeat(np.arange(len(codes)), sizes)
      values, ranges = values[source], ranges[source]
      several = np.flatnonzero(sizes[source] > 1)
      place = several - bounds[source[several]]
      values[several] = self._values[values[several] + place]
      text_bounds = bounds[text_bounds]
    joined = values.astype("<u4").tobytes().decode(_UTF32)
    limits = text_bounds.tolist()
    return NormalizedTexts(
      [joined[a:b].encode() for a, b in itertools.pairwise(limits)],
      np.repeat(ranges, _utf8_sizes(values), axis=0),
    )

  @functools.cached_property
  def _tensors(self) -> Sequence[tf.Tensor]:
    """The tables, once for all graphs: constants would be copied into each."""
    with tf.init_scope():
      return [*map(tf.constant, (self._first, self._sizes, self._values))]

  def normalize_tf(self, texts: tf.Tensor) -> tf.Tensor:
    """Normalizes a vector of texts in a graph of TensorFlow."""
    decoded = tf.strings.unicode_decode(texts, "UTF-8")
    *tables, several = self._tensors
    first, sizes = (tf.gather(table, decoded.values) for table in tables)
    places = tf.ragged.range(first, first + sizes)
    is_place = tf.repeat(sizes > 1, sizes)
    values = tf.gather(several, tf.where(is_place, places.values, 0))
    mapped = places.with_values(tf.where(is_place, values, places.values))
    by_text = decoded.with_values(mapped).merge_dims(1, 2)
    return tf.strings.unicode_encode(by_text, "UTF-8")


@functools.cache
def character_table(normalization: Normalization) -> CharacterTable:
  """Returns the table of a normalization, which takes a while to make."""
  return CharacterTable(normalization)


def _changes(normalization: Normalization) -> dict[int, str]:
  """Returns what each character becomes that does not stay the same."""
  codes = itertools.chain.from_iterable(itertools.starmap(range, _RANGES))
  characters = _CHANGEABLE.findall("".join(map(chr, codes)))
  if normalization.normalizer == "tensorflow_text":
    normalizer = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=True)
    texts = [t.decode() for t in normalizer.normalize(characters).numpy()]
  else:
    texts = [_as_bert(c, normalization) for c in characters]
  pairs = zip(characters, texts, strict=True)
  changes = {ord(c): text for c, text in pairs if text != c}
  if normalization.normalizer == "bert":
    # Two planes are for private use alone.
    changes |= dict.fromkeys(range(0xF0000, sys.maxunicode + 1), "")
  return changes


def _as_bert(character: str, normalization: Normalization) -> str:
  """Returns what BERT's tokenizer makes of a character."""
  if _IGNORED.match(character):
    return ""
  if character.isspace():
    return " "
  if normalization.strip_accents:
    parts = unicodedata.normalize("NFD", character)
    character = "".join(c for c in parts if unicodedata.category(c) != "Mn")
  if normalization.lowercase:
    character = "".join(map(str.lower, character))
  return character


def _codes(texts: Sequence[str]) -> Int[np.ndarray, " c"]:
  """Returns the code points of all characters of texts."""
  joined = "".join(texts).encode(_UTF32)
  return np.frombuffer(joined, "<u4").astype(np.int32)


def _utf8_sizes(codes: Int[np.ndarray, " c"]) -> Int[np.ndarray, " c"]:
  sizes = (codes > 0x7F).astype(np.int32)
  sizes += codes > 0x7FF
  sizes += codes > 0xFFFF
  return sizes + 1


def _add_removed_marks(
  ranges: Int[np.ndarray, "c 2"],
  marks: Int[np.ndarray, " m"],
  sizes: Int[np.ndarray, " c"],
  text_bounds: Int[np.ndarray, " bounds"],
) -> None:
  """Extends characters' ranges by the `marks` after them that are removed."""
  kept = np.where(sizes > 0, np.arange(len(sizes)), -1)
  last_kept = np.maximum.accumulate(kept)[marks]
  text = np.searchsorted(text_bounds, marks, side="right") - 1
  is_own = last_kept >= text_bounds[text]
  # Marks are in order, so that the last one of a character decides.
  ranges[last_kept[is_own], 1] = ranges[marks[is_own], 1]
