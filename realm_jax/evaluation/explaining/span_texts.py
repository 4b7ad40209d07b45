"""What each span of a block answers, as evaluations compare answers."""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from realm_jax.corpus.store import Corpus
from realm_jax.text.answer_spans import widen_to_words
from realm_jax.text.answers import normalize_answer


class SpanText(NamedTuple):
  """A span widened to whole words.

  Attributes:
    text: Words as they were written.
    start_byte, limit_byte: Its bytes in the UTF-8 of the body.
  """

  text: str
  start_byte: int
  limit_byte: int


class SpanTexts:
  """The texts of a block's spans, of which many give the same answer."""

  def __init__(self, corpus: Corpus, row: int):
    block = corpus.block(row)
    self._body = block.body.encode()
    self._byte_ranges = block.byte_ranges
    is_continuation = corpus.vocabulary.is_continuation
    self._continuation = is_continuation[block.body_token_ids]

  def of(self, start: int, width: int) -> SpanText:
    """Returns the text of `width` tokens from `start` on."""
    start, limit = widen_to_words(start, start + width, self._continuation)
    first = int(self._byte_ranges[start, 0])
    last = int(self._byte_ranges[limit - 1, 1])
    return SpanText(self._body[first:last].decode(), first, last)

  def normalized(
    self, is_span: Bool[np.ndarray, "l w"]
  ) -> dict[str, Int[np.ndarray, " n"]]:
    """Returns the spans that give each normalized answer.

    They are indices into the flattened [l w], in rising order.
    """
    found: dict[str, list[int]] = {}
    places = np.flatnonzero(is_span)
    for place in places.tolist():
      start, extra = divmod(place, is_span.shape[1])
      key = _normalized(self.of(start, extra + 1).text)
      found.setdefault(key, []).append(place)
    return {key: np.array(own) for key, own in found.items()}


_normalized = functools.lru_cache(maxsize=1 << 16)(normalize_answer)
