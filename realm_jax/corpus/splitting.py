"""Splits documents into blocks of whole sentences, as released REALM does.

A block is `[CLS] title [SEP] body [SEP]` of at most `block_length` wordpieces.
Its body takes whole sentences while they fit. A sentence is cut only if it
fits in no block: between wordpieces and, if possible, between words.

The functions take many documents at once, with tokens and bytes numbered
consecutively; `sentence_starts` and `token_starts` have the first sentence and
token of each document. `token_bytes` has the byte ranges of the tokens (see
`wordpieces.Tokens`).
"""

import bisect
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class Sentences(NamedTuple):
  """Half-open ranges of tokens and bytes, one for each sentence.

  Token ranges are adjacent and cover all tokens; byte ranges leave out the
  white space between sentences. `starts` has each document's first sentence.
  """

  token_ranges: Int[np.ndarray, "s 2"]
  byte_ranges: Int[np.ndarray, "s 2"]
  starts: Int[np.ndarray, " d"]


def align_sentences(
  sentences: Int[np.ndarray, "s 2"],
  token_bytes: Int[np.ndarray, "t 2"],
  *,
  sentence_starts: Int[np.ndarray, " d"],
  token_starts: Int[np.ndarray, " d"],
) -> Sentences:
  """Finds the tokens of sentences, which are byte ranges in order.

  A sentence without tokens is joined to the next one (the last sentence, to the
  previous one). Two sentences that share a token are also joined. A document
  without tokens has one empty sentence.
  """
  num_tokens = len(token_bytes)
  if not num_tokens:
    empty = np.zeros((len(token_starts), 2), np.int64)
    return Sentences(empty, empty, np.arange(len(token_starts)))
  sizes = np.diff(sentence_starts, append=len(sentences))
  first_token = np.repeat(token_starts, sizes)
  token_limit = np.repeat(np.append(token_starts[1:], num_tokens), sizes)
  first = np.searchsorted(token_bytes[:, 0], sentences[:, 0])
  before = np.maximum(first - 1, 0)
  keep = (
    (first < token_limit)
    & (token_bytes[before, 1] <= sentences[:, 0])
    & np.append(True, first[1:] != first[:-1])
    & (first > first_token)
  )
  keep[sentence_starts] = True
  heads = np.flatnonzero(keep)
  tails = np.append(heads[1:], len(sentences)) - 1
  starts = np.searchsorted(heads, sentence_starts)
  boundaries = np.append(first[heads], num_tokens)
  boundaries[starts] = token_starts
  return Sentences(
    np.stack([boundaries[:-1], boundaries[1:]], axis=1),
    np.stack([sentences[heads, 0], sentences[tails, 1]], axis=1),
    starts,
  )


def cut_overlong_sentences(
  sentences: Sentences,
  token_bytes: Int[np.ndarray, "t 2"],
  *,
  text: bytes,
  capacities: Int[np.ndarray, " s"],
  is_continuation: Bool[np.ndarray, " t"],
) -> tuple[Sentences, Int[np.ndarray, " s"]]:
  """Cuts sentences that fit in no block; also returns the pieces of each.

  A cut is made at white space if there is any in the second half of the part
  that fits, else between words (for example before a comma), else between the
  pieces of a word. The pieces of one character ('½' has three) are separated
  only if they exceed a block by themselves; both blocks then show it.

  `text` has the documents in UTF-8. `capacities` has, for each sentence, the
  largest number of tokens, at least one, of a body.
  """
  sizes = np.diff(sentences.token_ranges, axis=1)[:, 0]
  num_pieces = np.ones(len(sizes), np.int64)
  overlong = np.flatnonzero(sizes > capacities)
  if not overlong.size:
    return sentences, num_pieces
  gaps = token_bytes[1:, 0] - token_bytes[:-1, 1]
  # Positions at which a cut is possible, by preference.
  is_whole = np.append(True, gaps >= 0)
  is_word = is_whole & ~is_continuation
  is_spaced = is_word & np.append(True, gaps > 0)
  cuts = []
  for index in overlong.tolist():
    start, limit = sentences.token_ranges[index].tolist()
    byte_start, byte_limit = sentences.byte_ranges[index].tolist()
    most = int(capacities[index])
    pieces = []
    while limit - start > most:
      cut = last = start + most
      for is_kind, first in (
        (is_spaced, start + 1 + most // 2),
        (is_word, start + 1),
        (is_whole, start + 1),
      ):
        if (candidates := np.flatnonzero(is_kind[first : last + 1])).size:
          cut = first + int(candidates[-1])
          break
      cut_byte = int(token_bytes[cut, 0])
      piece = text[byte_start:cut_byte].rstrip()
      piece_limit = max(byte_start + len(piece), int(token_bytes[cut - 1, 1]))
      pieces.append((start, cut, byte_start, piece_limit))
      start, byte_start = cut, cut_byte
    pieces.append((start, limit, byte_start, byte_limit))
    num_pieces[index] = len(pieces)
    cuts += pieces
  first_piece = np.cumsum(num_pieces) - num_pieces
  ranges = np.concatenate([sentences.token_ranges, sentences.byte_ranges], 1)
  ranges = np.repeat(ranges, num_pieces, axis=0)
  ranges[np.repeat(num_pieces > 1, num_pieces)] = cuts
  starts = first_piece[sentences.starts]
  return Sentences(ranges[:, :2], ranges[:, 2:], starts), num_pieces


def pack_sentences(
  sizes: Int[np.ndarray, " s"],
  *,
  capacities: Int[np.ndarray, " d"],
  sentence_starts: Int[np.ndarray, " d"],
) -> Int[np.ndarray, " bounds"]:
  """Packs sentences greedily: block i has `[packed[i], packed[i + 1])`.

  `sizes` are the sentences' token counts, each at most the capacity of its
  document's blocks. A document begins with a new block.
  """
  totals = np.append(0, np.cumsum(sizes)).tolist()
  starts: list[int] = []
  limits: list[int] = np.append(sentence_starts, len(sizes))[1:].tolist()
  for start, limit, most in zip(
    sentence_starts.tolist(), limits, capacities.tolist(), strict=True
  ):
    while start < limit:
      starts.append(start)
      fits = bisect.bisect_right(totals, totals[start] + most, start, limit + 1)
      start = max(fits - 1, start + 1)
  return np.array([*starts, len(sizes)])


def token_spans(
  spans: Int[np.ndarray, "p 2"],
  token_bytes: Int[np.ndarray, "t 2"],
  sentences: Int[np.ndarray, "s 2"],
) -> tuple[Int[np.ndarray, "q 2"], Int[np.ndarray, " q"]]:
  """Finds the tokens of spans, which are byte ranges in order.

  A span that begins or ends inside a token, or crosses the end of a sentence,
  is left out. `sentences` has token ranges. Also returns the indices of the
  spans that are kept.
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
