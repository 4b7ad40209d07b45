"""Compares our wordpieces with Hugging Face's, and explains differences.

TensorFlow Text normalizes text by NFKC and case folding before it is split into
wordpieces, as did Google's released open QA. BERT's own tokenizer, and so
Hugging Face's, only lower-cases letters and drops accents. A difference counts
as explained by one of these normalizations if the other tokenizer gives our
tokens for the normalized text, but not for the text itself.
"""

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.agreement.comparison import Row
from realm_jax.text.wordpieces import WordpieceVocabulary

Ids = list[list[int]]
# Function that tokenizes texts with each of the other system's tokenizers.
Tokenize = Callable[[Sequence[str]], dict[str, Ids]]


class Folding(NamedTuple):
  """A normalization of text before it is split, and its description."""

  reason: str
  fold: Callable[[str], str]


FOLDINGS = (
  Folding(
    "compatibility characters, such as ½ ″ ‑",
    functools.partial(unicodedata.normalize, "NFKC"),
  ),
  Folding("letters that case folding replaces, such as ς ß", str.casefold),
  Folding(
    "both of these",
    lambda text: unicodedata.normalize("NFKC", text).casefold(),
  ),
)


def compare(
  texts: dict[str, list[str]],
  vocabulary: WordpieceVocabulary,
  tokenize: Tokenize,
) -> list[Row]:
  """Counts the texts with unexplained differences, by data set and tokenizer.

  Args:
    texts: Texts by data set.
    vocabulary: Our vocabulary.
    tokenize: The other system's tokenizers, with the same vocabulary.
  """
  flat = [text for some in texts.values() for text in some]
  ours = our_ids(vocabulary, flat)
  theirs = tokenize(flat)
  reasons = {
    name: _reasons(flat, ours, ids, functools.partial(_by, tokenize, name))
    for name, ids in theirs.items()
  }
  rows = []
  start = 0
  for data_set, some in texts.items():
    limit = start + len(some)
    num_tokens = sum(map(len, ours[start:limit]))
    for name, found in reasons.items():
      counts = Counter(found[i] for i in range(start, limit) if i in found)
      unexplained = counts.pop("", 0)
      note = f"of {len(some):,} texts, {num_tokens:,} tokens"
      for reason, count in counts.items():
        note += f"; explained: {count} by {reason}"
      rows.append(
        Row(
          f"tokens of {data_set}, {name}",
          "texts that differ, unexplained",
          unexplained,
          0,
          note=note,
        )
      )
    start = limit
  return rows


def our_ids(vocabulary: WordpieceVocabulary, texts: Sequence[str]) -> Ids:
  """Returns the ids of each text, without special tokens."""
  tokens = vocabulary.tokenize_with_offsets(texts)
  return [
    row.tolist() for row in np.split(tokens.token_ids, tokens.row_offsets[1:-1])
  ]


def _by(tokenize: Tokenize, name: str, texts: Sequence[str]) -> Ids:
  return tokenize(texts)[name]


def _reasons(
  texts: Sequence[str],
  ours: Ids,
  theirs: Ids,
  tokenize: Callable[[Sequence[str]], Ids],
) -> dict[int, str]:
  """Returns the reason for each text that differs; empty if unexplained."""
  differing = [i for i in range(len(texts)) if ours[i] != theirs[i]]
  reasons = dict.fromkeys(differing, "")
  for reason, fold in FOLDINGS:
    open_still = [i for i in differing if not reasons[i]]
    if not open_still:
      break
    folded = tokenize([fold(texts[i]) for i in open_still])
    for i, ids in zip(open_still, folded, strict=True):
      if ids == ours[i]:
        reasons[i] = reason
  return reasons
