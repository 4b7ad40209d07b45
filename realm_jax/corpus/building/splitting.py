"""Splits documents into blocks of whole sentences, as released REALM does.

A block is `[CLS] title [SEP] body [SEP]` of at most `block_length` wordpieces.
Its body takes whole sentences while they fit. A sentence is cut only if it
fits in no block: between wordpieces and, where possible, between words.

`token_bytes` are the byte ranges of a document's tokens: see
`wordpieces.Tokens`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class Sentences(NamedTuple):
  """Half-open ranges of tokens and bytes, one for each sentence of a document.

  Token ranges are adjacent and cover all tokens; byte ranges leave out the
  white space between sentences.
  """

  token_ranges: Int[np.ndarray, "s 2"]
  byte_ranges: Int[np.ndarray, "s 2"]


def align_sentences(
  sentences: Int[np.ndarray, "s 2"], token_bytes: Int[np.ndarray, "t 2"]
) -> Sentences:
  """Finds the tokens of sentences, which are byte ranges in order.

  A sentence without tokens is joined to the next one (the last, to the one
  before), and so are two sentences that share a token.
  """
  num_tokens = len(token_bytes)
  if not num_tokens:
    empty = np.zeros((0, 2), np.int64)
    return Sentences(empty, empty)
  first = np.searchsorted(token_bytes[:, 0], sentences[:, 0])
  before = np.maximum(first - 1, 0)
  keep = (
    (first < num_tokens)
    & (token_bytes[before, 1] <= sentences[:, 0])
    & np.append(True, first[1:] != first[:-1])
    & (first > 0)
  )
  keep[0] = True
  heads = np.flatnonzero(keep)
  tails = np.append(heads[1:], len(sentences)) - 1
  boundaries = np.append(first[heads], num_tokens)
  boundaries[0] = 0
  return Sentences(
    np.stack([boundaries[:-1], boundaries[1:]], axis=1),
    np.stack([sentences[heads, 0], sentences[tails, 1]], axis=1),
  )


def cut_overlong_sentences(
  sentences: Sentences,
  token_bytes: Int[np.ndarray, "t 2"],
  *,
  text: bytes,
  capacity: int,
  is_continuation: Bool[np.ndarray, " t"],
) -> tuple[Sentences, int]:
  """Cuts sentences that fit in no block; returns the pieces and a count.

  A cut is made at white space if there is any in the second half of what fits,
  else between words (for example before a comma), else between the pieces of a
  word. The pieces of one character ('½' has three) are separated only if it
  alone has too many; both blocks then show it.

  `text` is the document in UTF-8, and `capacity` the largest number of tokens
  of a body, at least one.
  """
  sizes = np.diff(sentences.token_ranges, axis=1)[:, 0]
  if not (sizes > capacity).any():
    return sentences, 0
  gaps = token_bytes[1:, 0] - token_bytes[:-1, 1]
  # Kinds of tokens before which to cut, best first.
  is_whole = np.append(True, gaps >= 0)
  is_word = is_whole & ~is_continuation
  is_spaced = is_word & np.append(True, gaps > 0)
  token_ranges, byte_ranges = [], []
  for (start, limit), (byte_start, byte_limit) in zip(
    sentences.token_ranges.tolist(),
    sentences.byte_ranges.tolist(),
    strict=True,
  ):
    while limit - start > capacity:
      cut = last = start + capacity
      for is_kind, first in (
        (is_spaced, start + 1 + capacity // 2),
        (is_word, start + 1),
        (is_whole, start + 1),
      ):
        if (candidates := np.flatnonzero(is_kind[first : last + 1])).size:
          cut = first + int(candidates[-1])
          break
      cut_byte = int(token_bytes[cut, 0])
      piece = text[byte_start:cut_byte].rstrip()
      piece_limit = max(byte_start + len(piece), int(token_bytes[cut - 1, 1]))
      token_ranges.append((start, cut))
      byte_ranges.append((byte_start, piece_limit))
      start, byte_start = cut, cut_byte
    token_ranges.append((start, limit))
    byte_ranges.append((byte_start, byte_limit))
  pieces = Sentences(np.array(token_ranges), np.array(byte_ranges))
  return pieces, int((sizes > capacity).sum())


def pack_sentences(
  sizes: Int[np.ndarray, " s"], *, capacity: int
) -> Int[np.ndarray, " bounds"]:
  """Packs sentences greedily: block i has `[packed[i], packed[i + 1])`.

  `sizes` are the sentences' numbers of tokens, each at most `capacity`.
  """
  starts, used = [0], 0
  for index, size in enumerate(sizes.tolist()):
    if used and used + size > capacity:
      starts.append(index)
      used = 0
    used += size
  return np.array([*starts, len(sizes)])


def token_spans(
  spans: Int[np.ndarray, "p 2"],
  token_bytes: Int[np.ndarray, "t 2"],
  sentences: Int[np.ndarray, "s 2"],
) -> tuple[Int[np.ndarray, "q 2"], Int[np.ndarray, " q"]]:
  """Finds the tokens of spans, which are byte ranges in order.

  A span that begins or ends inside a token, or crosses the end of a sentence
  (of `sentences`, token ranges), is left out. Also returns the indices of those
  that are not.
  """
  first = np.searchsorted(token_bytes[:, 0], spans[:, 0])
  limit = np.searchsorted(token_bytes[:, 1], spans[:, 1], side="right")
  inside = np.flatnonzero(first < limit)
  first, limit = first[inside], limit[inside]
  begins = token_bytes[first, 0] == spans[inside, 0]
  ends = token_bytes[limit - 1, 1] == spans[inside, 1]
  sentence_limits = sentences[:, 1]
  one_sentence = np.searchsorted(
    sentence_limits, first, side="right"
  ) == np.searchsorted(sentence_limits, limit, side="left")
  kept = begins & ends & one_sentence
  return np.stack([first, limit], axis=1)[kept], inside[kept]
