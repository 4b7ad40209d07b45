"""Normalization of text before it is split into wordpieces.

Models treat capitals, accents and compatibility characters differently, and a
model knows only the pieces that it was trained with:

| normalizer | capitals and accents | ß ½ ﬁ ς | models |
| --- | --- | --- | --- |
| `bert` | as `Normalization` says | unchanged | BERT, Hugging Face |
| `tensorflow_text` | removed by NFKC case folding | ss 1⁄2 fi σ | ORQA, REALM |

Every normalizer maps one character at a time, so it is stored as a table over
Unicode. The table also locates each normalized character in the original text.
(Marks and punctuation newer than Unicode 8 are classified by their current
properties. Hugging Face's tokenizers use an older version of Unicode.)

`tensorflow_text` matches TensorFlow Text 2.20, which supports much of Unicode
16, while Python 3.11 to 3.13 support 14 to 15.1. `_NEWER` has the characters in
between, so the tokens do not depend on the version of Python.
"""

import dataclasses
import functools
import itertools
import string
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import regex
from jaxtyping import Int, UInt8

from realm_jax.errors import RealmError
from realm_jax.settings import require_valid

# Control, format and private-use characters, which BERT ignores.
_IGNORED = regex.compile(
  "[\ufffd" + r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\p{Cf}\p{Co}]"
)
# Visible marks, such as accents.
_DRAWN_MARK = regex.compile(r"(?!\p{DI})\p{M}")
# Invisible characters, which NFKC case folding removes.
_UNSEEN = regex.compile(r"\p{DI}")
_UTF32 = "utf-32-le"
# All characters except ideographs and private planes, and a pattern for those
# that may change, because normalizing every character takes a second.
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
# Roles of characters: part of a word, end of a word, or a word by itself.
_LETTER, _SPACE, _WORD = range(3)
_WHITE = regex.compile(r"\p{White_Space}")
# Characters that are words by themselves: punctuation and, in ASCII, symbols.
# TensorFlow Text does not know the punctuation of Unicode 17.
_ALONE = regex.compile(r"(?![\u2e60-\u2e63\U00010ed0])[\p{P}!-/:-@\[-`{-~]")
# BERT's "Chinese characters", which are also words by themselves.
_IDEOGRAPHS = (
  *((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00)),
  *((0x20000, 0x2A6E0), (0x2A700, 0x2CEB0), (0x2F800, 0x2FA20)),
)
# Results of `tensorflow_text` for runs of characters newer than Unicode 14, by
# the first code point of each run.
_NEWER: Mapping[int, Sequence[str]] = {
  0xECE: [""],
  0x1C89: "\u1c8a",
  0xA7CB: "\u0264\ua7cd",
  0xA7DA: "\ua7db",
  0xA7DC: "\u019b",
  0x105C9: "\U000105d2",
  0x105E4: "\U000105da",
  0x10D50: [*map(chr, range(0x10D70, 0x10D86))],
  0x10EFD: [""] * 3,
  0x11241: [""],
  0x11383: ["\U00011382\U000113c9"],
  0x11385: ["\U00011384\U000113bb"],
  0x1138E: ["\U0001138b\U000113c2"],
  0x11391: ["\U00011390\U000113c9"],
  0x113C5: ["\U000113c2\U000113c2"],
  0x113C7: ["\U000113c2\U000113b8", "\U000113c2\U000113c9"],
  0x11F00: [""] * 2,
  0x11F36: [""] * 5,
  0x11F40: [""],
  0x11F42: [""],
  0x13439: [*" " * 7, ""],
  0x13447: [""] * 15,
  0x16121: [
    *("\U0001611e\U0001611e", "\U0001611e\U00016129"),
    *("\U0001611e\U0001611f", "\U00016129\U0001611f"),
    *("\U0001611e\U00016120", "\U0001611e\U0001611e\U0001611f"),
    *("\U0001611e\U00016129\U0001611f", "\U0001611e\U0001611e\U00016120"),
  ],
  0x16D68: [
    *("\U00016d67\U00016d67", "\U00016d63\U00016d67"),
    "\U00016d63\U00016d67\U00016d67",
  ],
  0x1CCD6: string.ascii_lowercase + string.digits,
  0x1E030: "абвгдежзиклмопрстуфхцчшыэюꚉәіјөүӏабвгдежзиклопсуфхцчшъыґіѕџҫꙑұ",
  0x1E08F: [""],
  0x1E4EC: [""] * 4,
}

Normalizer = Literal["bert", "tensorflow_text"]


@dataclasses.dataclass(frozen=True)
class Normalization:
  """How text is normalized before it is split, as stored in `vocab.json`.

  Attributes:
    normalizer: `bert` or `tensorflow_text`, which always lowercases and removes
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
    """Whether capitals are kept."""
    return not self.lowercase

  @classmethod
  def of(
    cls, *, cased: bool, normalizer: Normalizer = "tensorflow_text"
  ) -> "Normalization":
    """Returns BERT's for cased text, and the normalizer's default otherwise."""
    return cls("bert", False, False) if cased else cls(normalizer)


class NormalizedTexts(NamedTuple):
  """Concatenated normalized texts, and the origin of each character.

  Attributes:
    codes: Code points of all normalized texts; text i is
      `codes[bounds[i] : bounds[i + 1]]`.
    bounds: Start of each text in `codes`, and the end of the last one.
    starts, limits: Byte range of each code point in the original texts, which
      are concatenated in UTF-8. The range includes accents that were removed,
      and neither begins nor ends with invisible characters.
    text_starts: Byte at which each original text begins.
  """

  codes: Int[np.ndarray, " c"]
  bounds: Int[np.ndarray, " n+1"]
  starts: Int[np.ndarray, " c"]
  limits: Int[np.ndarray, " c"]
  text_starts: Int[np.ndarray, " n"]

  def words(
    self,
  ) -> tuple[list[str], Int[np.ndarray, " w"], Int[np.ndarray, " w"]]:
    """Returns the words, with the start and limit of each in `codes`.

    Words end at white space, punctuation, ideographs and the ends of texts.
    """
    kinds = _kinds()[self.codes]
    is_cut = np.ones(len(kinds) + 1, bool)
    is_cut[1:-1] = (kinds[1:] | kinds[:-1]) != _LETTER
    is_cut[self.bounds] = True
    starts = np.flatnonzero((kinds != _SPACE) & is_cut[:-1])
    limits = np.flatnonzero((kinds != _SPACE) & is_cut[1:]) + 1
    spaced = np.insert(self.codes, starts, ord(" "))
    return spaced.tobytes().decode(_UTF32).split(), starts, limits


class CharacterTable:
  """A normalizer, as a table over Unicode."""

  def __init__(self, normalization: Normalization):
    changes = _changes(normalization)
    lengths = [len(text) for text in changes.values()]
    # Number of characters that each character becomes, by default 1; and the
    # character itself, or the position in `_values` if it becomes several.
    self._sizes = np.ones(sys.maxunicode + 1, np.int32)
    self._first = np.arange(sys.maxunicode + 1, dtype=np.int32)
    self._values = _codes("".join(changes.values()))
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
    joined = "".join(texts)
    codes, positions = _codes(joined), byte_positions(joined)
    bounds = np.cumsum([0, *map(len, texts)])
    text_starts = positions[bounds[:-1]]
    starts, limits = positions[:-1], positions[1:]
    values, sizes = self._first[codes], self._sizes[codes]
    if (sizes != 1).any():
      marks = np.flatnonzero(self._is_removed_mark[codes])
      kept = np.where(sizes > 0, np.arange(len(sizes)), -1)
      last_kept = np.maximum.accumulate(kept)[marks]
      text = np.searchsorted(bounds, marks, side="right") - 1
      is_own = last_kept >= bounds[text]
      # A character's range includes the removed marks after it. They are in
      # order, so the last assignment wins.
      limits = limits.copy()
      limits[last_kept[is_own]] = limits[marks[is_own]]
      ends = np.append(0, np.cumsum(sizes))
      source = np.repeat(np.arange(len(codes)), sizes)
      values, starts, limits = values[source], starts[source], limits[source]
      several = np.flatnonzero(sizes[source] > 1)
      place = several - ends[source[several]]
      values[several] = self._values[values[several] + place]
      bounds = ends[bounds]
    return NormalizedTexts(values, bounds, starts, limits, text_starts)


@functools.cache
def character_table(normalization: Normalization) -> CharacterTable:
  """Returns the table of a normalization, cached because it is slow to make."""
  return CharacterTable(normalization)


def _changes(normalization: Normalization) -> dict[int, str]:
  """Returns the replacement of each character that changes."""
  characters = _CHANGEABLE.findall(_characters())
  is_bert = normalization.normalizer == "bert"
  changes = {
    ord(c): _as_bert(c, normalization) if is_bert else _as_tensorflow_text(c)
    for c in characters
  }
  if is_bert:
    # The last two planes are for private use.
    changes |= dict.fromkeys(range(0xF0000, sys.maxunicode + 1), "")
  else:
    for first, texts in _NEWER.items():
      changes |= dict(enumerate(texts, start=first))
  return {code: text for code, text in changes.items() if text != chr(code)}


def _as_tensorflow_text(character: str) -> str:
  """Normalizes a character like TensorFlow Text's `FastBertNormalizer`.

  That folds case by NFKC, decomposes by NFD, and removes accents.
  """
  text = character
  for _ in range(2):
    text = _UNSEEN.sub("", unicodedata.normalize("NFKC", text).casefold())
  # Ogham's space mark stays, because some fonts draw it.
  is_blank = unicodedata.category(character) in ("Cc", "Cf", "Zs")
  if is_blank and text not in ("", "\u1680"):
    return " "
  parts = unicodedata.normalize("NFD", text)
  return "".join(c for c in parts if unicodedata.category(c) != "Mn")


def _as_bert(character: str, normalization: Normalization) -> str:
  """Normalizes a character like BERT's tokenizer."""
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


@functools.cache
def _kinds() -> UInt8[np.ndarray, " u"]:
  """Returns each character's role in words; see `NormalizedTexts.words`."""
  kinds = np.full(sys.maxunicode + 1, _LETTER, np.uint8)
  for pattern, kind in ((_WHITE, _SPACE), (_ALONE, _WORD)):
    kinds[[ord(c) for c in pattern.findall(_characters())]] = kind
  for start, limit in _IDEOGRAPHS:
    kinds[start:limit] = _WORD
  return kinds


@functools.cache
def _characters() -> str:
  codes = itertools.starmap(range, _RANGES)
  return "".join(map(chr, itertools.chain.from_iterable(codes)))


def _codes(text: str) -> Int[np.ndarray, " c"]:
  """Returns the code points of a text."""
  return np.frombuffer(text.encode(_UTF32), "<u4").astype(np.int32)


def byte_positions(text: str) -> Int[np.ndarray, " bounds"]:
  """Returns the byte offset of each character, and the length in bytes."""
  encoded = np.frombuffer(text.encode("utf-8"), np.uint8)
  starts = np.flatnonzero((encoded & 0xC0) != 0x80)
  return np.append(starts, len(encoded))
