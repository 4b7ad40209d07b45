"""Compares the wordpieces of real texts with those of Hugging Face.

TensorFlow Text normalizes text by NFKC and case folding before it is split into
wordpieces, as did Google's released open QA. BERT's own tokenizer, and so
Hugging Face's, only lower-cases letters and drops accents. A difference counts
as explained by one of these normalizations if the other tokenizer gives our
tokens for the normalized text, but not for the text itself.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import peer_processes
from benchmarks.agreement.comparison import Row
from realm_jax.text.wordpieces import WordpieceVocabulary

_TOKENIZERS = ("fast", "slow")

Ids = list[list[int]]


def _nfkc(text: str) -> str:
  return unicodedata.normalize("NFKC", text)


_FOLDINGS = {
  "compatibility characters, such as ½ ″ ‑": _nfkc,
  "letters that case folding replaces, such as ς ß": str.casefold,
  "both of these": lambda text: _nfkc(text).casefold(),
}


def compare_tokens(
  texts: dict[str, list[str]], vocab: Path, folder: Path
) -> list[Row]:
  """Compares the tokens of all texts with both of Hugging Face's tokenizers.

  Args:
    texts: Texts by data set.
    vocab: Vocabulary file of all tokenizers.
    folder: Folder for files between the processes.

  Returns:
    The texts with unexplained differences, by data set and tokenizer.
  """

  def tokenize(texts: Sequence[str]) -> dict[str, Ids]:
    found = peer_processes.run_on_texts("tokens", texts, folder, model=vocab)
    return {
      name: _split(found[f"{name}/ids"], found[f"{name}/offsets"])
      for name in _TOKENIZERS
    }

  flat = [text for some in texts.values() for text in some]
  tokens = WordpieceVocabulary(vocab).tokenize_with_offsets(flat)
  ours = _split(tokens.token_ids, tokens.row_offsets)
  # By tokenizer, the reason for each text that differs; empty if unexplained.
  reasons = {
    name: {i: "" for i in range(len(flat)) if ids[i] != ours[i]}
    for name, ids in tokenize(flat).items()
  }
  differing = sorted({i for found in reasons.values() for i in found})
  for reason, fold in _FOLDINGS.items() if differing else ():
    for name, folded in tokenize([fold(flat[i]) for i in differing]).items():
      for i, ids in zip(differing, folded, strict=True):
        if reasons[name].get(i) == "" and ids == ours[i]:
          reasons[name][i] = reason
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
      what = f"tokens of {data_set}, {name}", "texts that differ, unexplained"
      rows.append(Row(*what, unexplained, 0, note=note))
    start = limit
  return rows


def _split(ids: np.ndarray, offsets: np.ndarray) -> Ids:
  return [row.tolist() for row in np.split(ids, offsets[1:-1])]
