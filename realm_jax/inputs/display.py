"""Examples as people read them: decoded, with what is masked shown."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio

from realm_jax.corpus.store import Corpus
from realm_jax.inputs.features import CorpusVocabulary
from realm_jax.text.wordpieces import CONTINUATION, WordpieceVocabulary

_LABEL_WIDTH = 16
# What a mask hides is written into it, and the rest of these in their turn.
_DERIVED = ("mask_positions", "mask_weights")


def _words(
  token_ids: Sequence[int],
  vocabulary: WordpieceVocabulary,
  *,
  hidden: Mapping[int, int],
) -> str:
  """Token ids as words; where one is hidden, `[MASK=word]` or `[MASK=##ed]`."""
  words: list[str] = []
  for place, token_id in enumerate(token_ids):
    piece = vocabulary.pieces[token_id]
    if place in hidden:
      words.append(f"[MASK={vocabulary.pieces[hidden[place]]}]")
    elif piece.startswith(CONTINUATION) and words:
      words[-1] += piece.removeprefix(CONTINUATION)
    else:
      words.append(piece)
  return " ".join(words)


def _plain(value: Any) -> str:
  """Numbers, truth values and texts as they are, lists joined by ` | `."""
  if isinstance(value, np.ndarray) and value.ndim:
    return " | ".join(map(_plain, value))
  if isinstance(value, bytes):
    return value.decode("utf-8")
  if isinstance(value, (bool, np.bool_)):
    return "yes" if value else "no"
  return str(value)


def _lines(
  example: Mapping[str, np.ndarray],
  features: Mapping[str, seqio.Feature],
  corpus: Corpus,
) -> Iterator[tuple[str, str]]:
  hidden = dict(
    zip(
      example.get("mask_positions", np.zeros(0)).tolist(),
      example.get("mask_targets", np.zeros(0)).tolist(),
      strict=True,
    )
  )
  for name, value in example.items():
    feature = features.get(name)
    if name == "position" or name in _DERIVED:
      continue
    if name == "source_id":
      row = int(corpus.rows_of(value))
      if row >= 0:
        yield "source", f"{corpus.title(row)} ({corpus.block_name(row)})"
    elif feature and isinstance(feature.vocabulary, CorpusVocabulary):
      masks = hidden if name == "query" else {}
      yield name, _words(value.tolist(), corpus.vocabulary, hidden=masks)
    elif name == "answer_tokens":
      answers = [row[row != 0].tolist() for row in value]
      yield (
        name,
        " | ".join(_words(a, corpus.vocabulary, hidden={}) for a in answers),
      )
    else:
      yield name, _plain(value)


def describe(
  example: Mapping[str, np.ndarray],
  *,
  features: Mapping[str, seqio.Feature],
  corpus: Corpus,
  width: int = 80,
) -> str:
  """One example of a task as a paragraph.

  Args:
    example: as an `ExampleStream` gives it.
    features: the task's `output_features`; those over the corpus's vocabulary
      are decoded.
    corpus: whose vocabulary and titles are used.
    width: of the lines.
  """
  indent = " " * (_LABEL_WIDTH + 2)
  paragraphs = [f"position {int(example['position'])}"]
  for label, text in _lines(example, features, corpus):
    paragraphs.append(
      textwrap.fill(
        text or "(empty)",
        width=max(width, 2 * _LABEL_WIDTH),
        initial_indent=f"  {label:<{_LABEL_WIDTH}}",
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
      )
    )
  return "\n".join(paragraphs)
