"""Byte-level BPE of ModernBERT, with the positions of tokens in a text.

The tokenizers library encodes (`tokenizer.json`). Two additional rules make
tokens independent of the context, so that an answer has the same tokens as in a
block:

- Every text begins with a space, unless it continues after a prefix such as
  `search_query: ` or a mask. transformers returns the same ids there.
- Any white space counts as one space, and is not a token by itself, as in BERT.

In this project, the id of padding is always 0. ModernBERT has another piece at
0, so the two are swapped, and an import swaps the rows of the weights.
"""

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from realm_jax.text.vocabulary import BertVocabulary, Tokens, VocabularyError
from realm_jax.text.wordpieces import CONTINUATION

# How the library writes a space.
_SPACE = "Ġ"
# Unicode's white space.
_SPACES = np.array([c for c in range(0x3001) if chr(c).isspace()], np.uint32)
_UTF32 = "utf-32-le"


class BytePairVocabulary(BertVocabulary):
  """A tokenizer of byte-level pairs with BERT's special pieces.

  Args:
    tokenizer: Contents of a `tokenizer.json`.

  Raises:
    VocabularyError: The tokenizer is of another kind, or lacks a special piece.
  """

  def __init__(self, tokenizer: str):
    self.tokenizer = tokenizer
    self._encoder = _loaded(tokenizer)
    by_id = {id: p for p, id in self._encoder.get_vocab().items()}
    self._raw = [by_id.get(i, "") for i in range(max(by_id) + 1)]
    padding = self._encoder.token_to_id("[PAD]")
    self._swapped = padding or 0
    ours = self.from_theirs(np.arange(len(self._raw)))
    self._raw = [self._raw[i] for i in ours]
    texts = self._encoder.decode_batch(
      ours[:, None].tolist(), skip_special_tokens=False
    )
    # A piece after an opening bracket also counts as continuing a word.
    continues = [
      raw[:1] not in ("", _SPACE) and (text[:1].isalnum() or "\ufffd" in text)
      for raw, text in zip(self._raw, texts, strict=True)
    ]
    self.is_continuation = np.array(continues)
    pieces = []
    for number, raw in enumerate(self._raw):
      text = texts[number].strip() or raw or f"[unused_row_{number}]"
      pieces.append(CONTINUATION + text if continues[number] else text)
    super().__init__(pieces)

  def __reduce__(self) -> tuple[Any, ...]:
    return BytePairVocabulary, (self.tokenizer,)

  def from_theirs(self, ids: Int[np.ndarray, "*s"]) -> Int[np.ndarray, "*s"]:
    """Maps the file's ids to ours, or our ids to the file's."""
    swapped = self._swapped
    return np.where(ids == swapped, 0, np.where(ids == 0, swapped, ids))

  @functools.cached_property
  def digest(self) -> str:
    """Hash of pieces, merges and rules, which identifies the vocabulary."""
    file = json.loads(self.tokenizer)
    merges = file["model"].get("merges") or ()
    merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
    rules = [file.get("normalizer"), file.get("pre_tokenizer")]
    identity = json.dumps([self._raw, merges, rules], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of token ids, without padding."""
    theirs = self.from_theirs(np.array([i for i in ids if i], np.int64))
    return self._encoder.decode(
      theirs.tolist(), skip_special_tokens=False
    ).strip()

  def tokenize_with_offsets(
    self, texts: Sequence[str], *, follows: bool = False
  ) -> Tokens:
    """Tokenizes texts, which must have no lone surrogates."""
    spaced = [_spaced(text, follows=follows) for text in texts]
    encodings = self._encoder.encode_batch(
      [text for text, _ in spaced], add_special_tokens=False
    )
    counts = [len(one.ids) for one in encodings]
    row_offsets = np.cumsum([0, *counts])
    ids = np.fromiter(_chained(one.ids for one in encodings), np.int64)
    ranges = np.fromiter(
      _chained(_chained(one.offsets) for one in encodings), np.int64
    ).reshape(-1, 2)
    # Byte ranges of the characters of all spaced texts.
    sizes = [len(text) for text, _ in spaced]
    ranges += np.repeat(np.cumsum([0, *sizes[:-1]]), counts)[:, None]
    characters = np.frombuffer(
      "".join(text for text, _ in spaced).encode(_UTF32), np.uint32
    )
    byte_ranges = np.concatenate(
      [np.zeros((0, 2), np.int64)] + [places for _, places in spaced]
    )
    starts = ranges[:, 0]
    starts = starts + (characters[starts] == ord(" "))
    # A space by itself has the position of the next character.
    last = np.maximum(ranges[:, 1] - 1, starts)
    return Tokens(
      self.from_theirs(ids).astype(np.int32),
      row_offsets,
      np.stack([byte_ranges[starts, 0], byte_ranges[last, 1]], axis=1),
    )


def _chained(parts: Iterable[Iterable[Any]]) -> Iterable[Any]:
  return itertools.chain.from_iterable(parts)


def _spaced(text: str, *, follows: bool) -> tuple[str, Int[np.ndarray, "c 2"]]:
  """Returns a text with single spaces, and the bytes of its characters.

  The text does not end with a space.
  """
  codes = np.frombuffer(text.encode(_UTF32), np.uint32)
  is_space = np.isin(codes, _SPACES)
  sizes = 1 + (codes[:, None] >= [0x80, 0x800, 0x10000]).sum(axis=1)
  limits = np.cumsum(sizes)
  places = np.stack([limits - sizes, limits], axis=1)
  kept = ~is_space
  kept[:-1] |= is_space[:-1] & ~is_space[1:]
  codes = np.where(is_space, ord(" "), codes).astype("<u4")[kept]
  text, places = codes.tobytes().decode(_UTF32), places[kept]
  if not follows and text and text[0] != " ":
    return f" {text}", np.concatenate([[[0, 0]], places])
  return text, places


def _loaded(tokenizer: str) -> Any:
  try:
    import tokenizers
  except ImportError as error:
    raise VocabularyError(
      "the tokenizers library encodes byte-level pairs: "
      "pip install 'realm_jax[tokenizers]'"
    ) from error
  if "ByteLevel" not in json.dumps(json.loads(tokenizer).get("pre_tokenizer")):
    raise VocabularyError(
      "the tokenizer has BPE that is not byte-level; want BERT's WordPiece, or "
      "byte-level pairs as of ModernBERT"
    )
  try:
    encoder = tokenizers.Tokenizer.from_str(tokenizer)
  # The library raises no more specific error.
  except Exception as error:
    raise VocabularyError(
      f"the tokenizer cannot be read ({error}); copy the file again"
    ) from error
  encoder.no_padding()
  encoder.no_truncation()
  # A special piece in a text is encoded as plain text.
  encoder.encode_special_tokens = True
  return encoder
