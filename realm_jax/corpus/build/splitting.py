"""Cutting a document into blocks: greedy whole sentences, as released REALM.

A block holds `[CLS] title [SEP] body [SEP]` in at most `block_length`
wordpieces. Its body takes whole sentences while they fit. Only a sentence that
fits in no block is cut, between wordpieces and, where possible, between words.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

# [CLS], and [SEP] after the title and after the body.
NUM_SPECIAL_TOKENS = 3


class Sentences(NamedTuple):
  """Sentences of one document: half-open ranges of its tokens and bytes.

  Token ranges touch and cover all tokens; byte ranges leave out the white
  space between sentences.
  """

  token_ranges: Int[np.ndarray, "s 2"]
  byte_ranges: Int[np.ndarray, "s 2"]


def align_sentences(
  sentences: Int[np.ndarray, "s 2"],
  token_starts: Int[np.ndarray, " t"],
  token_limits: Int[np.ndarray, " t"],
) -> Sentences:
  """Expresses sentences in tokens.

  A sentence without tokens joins the one after it (the last, the one before),
  and so do two sentences that one token straddles.

  Args:
    sentences: byte ranges in order.
    token_starts: first byte of each token, non-decreasing.
    token_limits: the byte after each token.
  """
  num_tokens = len(token_starts)
  if not num_tokens:
    empty = np.zeros((0, 2), np.int64)
    return Sentences(empty, empty)
  first = np.searchsorted(token_starts, sentences[:, 0])
  before = np.maximum(first - 1, 0)
  keep = (
    (first < num_tokens)
    & (token_limits[before] <= sentences[:, 0])
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
  *,
  text: bytes,
  capacity: int,
  is_continuation: Bool[np.ndarray, " t"],
  token_starts: Int[np.ndarray, " t"],
  token_limits: Int[np.ndarray, " t"],
) -> tuple[Sentences, int]:
  """Cuts what fits in no block; returns the pieces and how many were cut.

  A cut is made at white space if there is any in the second half of what fits,
  else between words (before a comma, say), else between the pieces of a word;
  pieces of one character ('½' has three) are parted only where it alone has too
  many, and then both sides show it.

  Args:
    sentences: of the document `text`.
    text: the document, UTF-8.
    capacity: the most tokens a body can have; at least one.
    is_continuation: which of the document's tokens continue a word.
    token_starts: first byte of each token.
    token_limits: the byte after each token.
  """
  sizes = np.diff(sentences.token_ranges, axis=1)[:, 0]
  if not (sizes > capacity).any():
    return sentences, 0
  gaps = token_starts[1:] - token_limits[:-1]
  # The kinds of tokens to cut before, the best first.
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
        if (places := np.flatnonzero(is_kind[first : last + 1])).size:
          cut = first + int(places[-1])
          break
      piece = text[byte_start : token_starts[cut]].rstrip()
      piece_limit = max(byte_start + len(piece), int(token_limits[cut - 1]))
      token_ranges.append((start, cut))
      byte_ranges.append((byte_start, piece_limit))
      start, byte_start = cut, int(token_starts[cut])
    token_ranges.append((start, limit))
    byte_ranges.append((byte_start, byte_limit))
  pieces = Sentences(np.array(token_ranges), np.array(byte_ranges))
  return pieces, int((sizes > capacity).sum())


def pack_sentences(
  sizes: Int[np.ndarray, " s"], *, capacity: int
) -> Int[np.ndarray, " b+1"]:
  """Greedy packing: block i holds sentences `[packed[i], packed[i + 1])`.

  Args:
    sizes: tokens of each sentence, none above `capacity`.
    capacity: the most tokens a body can have.
  """
  starts, used = [0], 0
  for index, size in enumerate(sizes.tolist()):
    if used and used + size > capacity:
      starts.append(index)
      used = 0
    used += size
  return np.array([*starts, len(sizes)])
