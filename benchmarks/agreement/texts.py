"""Compares wordpieces and MiniLM's sentence vectors of real texts.

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
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import peer_processes
from benchmarks.agreement import imported_model
from benchmarks.agreement.comparison import Row
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.plan import make_plan

_TOKENIZERS = ("fast", "slow")
_MIN_SENTENCE_COSINE = 0.99999
_MAX_TOKENS = 128
_TEXTS_PER_CALL = 32

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


def compare_tokens(
  texts: dict[str, list[str]], vocab: Path, folder: Path
) -> list[Row]:
  """Compares the tokens of all texts with both of Hugging Face's tokenizers.

  Args:
    texts: Texts by data set.
    vocab: Vocabulary file of all tokenizers.
    folder: Folder for files between the processes.
  """

  def tokenize(texts: Sequence[str]) -> dict[str, Ids]:
    found = peer_processes.run_on_texts("tokens", texts, folder, model=vocab)
    return {
      name: [
        row.tolist()
        for row in np.split(
          found[f"{name}/ids"], found[f"{name}/offsets"][1:-1]
        )
      ]
      for name in _TOKENIZERS
    }

  return compare_tokenizers(texts, WordpieceVocabulary(vocab), tokenize)


def compare_sentences(
  texts: Sequence[str], model_dir: Path, folder: Path
) -> list[Row]:
  """Compares sentence vectors, for which each system uses its own tokenizer.

  Args:
    texts: Sentences and paragraphs; long ones are truncated.
    model_dir: Folder with BERT weights that sentence-transformers knows.
    folder: Folder for files between the processes.
  """
  theirs = peer_processes.run_on_texts(
    "vectors", texts, folder, f"--max_length={_MAX_TOKENS}", model=model_dir
  )
  model = imported_model.load(make_plan(ImportConfig("hf_bert", model_dir)))
  words = WordpieceVocabulary(model_dir / "vocab.txt")
  token_ids = np.zeros((len(texts), _MAX_TOKENS), np.int32)
  for row, ids in zip(token_ids, our_ids(words, texts), strict=True):
    kept = [words.cls_id, *ids[: _MAX_TOKENS - 2], words.sep_id]
    row[: len(kept)] = kept
  ours = np.concatenate(
    [
      model.query_vectors(token_ids[start : start + _TEXTS_PER_CALL])
      for start in range(0, len(texts), _TEXTS_PER_CALL)
    ]
  )
  cosines = np.sum(np.float64(ours) * theirs["vectors"], axis=-1)
  width = theirs["token_ids"].shape[1]
  same = np.all(token_ids[:, :width] == theirs["token_ids"], axis=-1)
  same &= ~token_ids[:, width:].any(axis=-1)
  return [
    Row(
      "MiniLM's sentence vectors",
      "cosine",
      float(cosines[same].min()),
      _MIN_SENTENCE_COSINE,
      at_least=True,
      note=f"the least of {same.sum()} texts; {np.sum(~same)} others have "
      "other tokens, as explained above",
    )
  ]


def compare_tokenizers(
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
