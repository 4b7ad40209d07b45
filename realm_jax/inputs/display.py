"""Decodes examples for people, with the masked words."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import seqio

from realm_jax.corpus.store import Corpus
from realm_jax.inputs.features import CorpusVocabulary
from realm_jax.text.wordpieces import CONTINUATION

_LABEL_WIDTH = 16
# The headline has the position, and the decoded query shows the masks.
_NOT_SHOWN = ("position", "mask_positions", "mask_weights", "source_hash")


def describe(
  example: Mapping[str, np.ndarray | np.generic | bytes],
  *,
  features: Mapping[str, seqio.Feature],
  corpus: Corpus,
  width: int = 80,
) -> str:
  """Formats one example of an `ExampleStream` as a paragraph.

  Token ids of `features`, the task's `output_features`, are decoded. Lines have
  at most `width` characters.
  """
  arrays = {name: np.asarray(value) for name, value in example.items()}
  paragraphs = [f"position {arrays['position']}"]
  for label, text in _lines(arrays, features, corpus):
    paragraphs.append(
      textwrap.fill(
        text or "(empty)",
        width=max(width, 2 * _LABEL_WIDTH),
        initial_indent=f"  {label:<{_LABEL_WIDTH}}",
        subsequent_indent=" " * (_LABEL_WIDTH + 2),
        break_on_hyphens=False,
        break_long_words=False,
      )
    )
  return "\n".join(paragraphs)


def _lines(
  example: Mapping[str, np.ndarray],
  features: Mapping[str, seqio.Feature],
  corpus: Corpus,
) -> Iterator[tuple[str, str]]:
  pieces, nothing = corpus.vocabulary.pieces, np.zeros(0)
  masks = (example.get(f"mask_{x}", nothing) for x in ("positions", "targets"))
  hidden = {
    place: f"[MASK={pieces[token]}]"
    for place, token in zip(*(array.tolist() for array in masks), strict=True)
  }
  for name, value in example.items():
    feature = features.get(name)
    if name in _NOT_SHOWN:
      continue
    if name == "source_id":
      if (row := int(corpus.rows_of(value))) >= 0:
        block = corpus.block(row)
        yield "source", f"{block.title} ({block.id})"
    elif feature and isinstance(feature.vocabulary, CorpusVocabulary):
      yield name, _words(value, pieces, hidden if name == "query" else {})
    elif name == "answer_tokens":
      answers = [_words(row[row != 0], pieces, {}) for row in value]
      yield name, " | ".join(answers)
    elif value.dtype == bool:
      yield name, "yes" if value else "no"
    else:
      items = np.atleast_1d(value).tolist()
      texts = [x.decode() if isinstance(x, bytes) else str(x) for x in items]
      yield name, " | ".join(texts)


def _words(
  token_ids: np.ndarray, pieces: Sequence[str], shown: Mapping[int, str]
) -> str:
  """Decodes token ids, with other texts at the positions in `shown`."""
  words = [
    shown.get(position, pieces[token])
    for position, token in enumerate(token_ids.tolist())
  ]
  return " ".join(words).replace(f" {CONTINUATION}", "")
