"""Describes the passages of an explanation for the page."""

import itertools
from typing import Any

import numpy as np

from realm_jax.answers.match import exact_match
from realm_jax.answers.spans import find_token_spans
from realm_jax.corpus.paths import text_places
from realm_jax.corpus.store import NULL_ROW
from realm_jax.evaluation.result import Hit
from realm_jax.evaluation.run import TrainedRun


def _around(run: TrainedRun, row: int) -> list[str | None]:
  """Returns the texts before and after a block in its document, or None."""
  if row == NULL_ROW:
    return []
  others = range(run.corpus.num_blocks)
  document = run.block(row).document_id
  return [
    run.block(other).text
    if other in others and run.block(other).document_id == document
    else None
    for other in (row - 1, row + 1)
  ]


def passages_of(run: TrainedRun, answer: str, hit: Hit) -> list[dict[str, Any]]:
  """Returns what the page shows of a block, or of each block of a path.

  This is its title and text, both in segments, the texts before and after it in
  the document, and whether it was edited. The title of the first block has no
  segments, because the reader does not read it as text.
  """
  body, marks = hit.block.text.encode(), _marks(run, answer, hit)
  return [
    {
      "is_edited": part.row in run.edits,
      "title_segments": _segments(body[of_title], marks[of_title]),
      "segments": _segments(body[of_body], marks[of_body]),
      "around": _around(run, part.row),
    }
    for part, (of_title, of_body) in zip(
      hit.block.parts, text_places(hit.block.parts), strict=True
    )
  ]


def _marks(run: TrainedRun, answer: str, hit: Hit) -> np.ndarray:
  """Returns the mark of each byte of a block's text.

  The mark is "answer" in an occurrence of the answer, "said" in the answer that
  the reader would give from this block alone, and otherwise "". Words are
  compared by their wordpieces, so capitals and accents may not matter.
  """
  block, best, words = hit.block, hit.best, run.vocabulary
  token_ids, body = block.body_token_ids, block.text.encode()
  answers = answer.split(" | ")
  marks = np.full(len(body), "", "U6")
  if best is not None and best.start is not None:
    first, limit = (
      len(block.text[:place].encode()) for place in (best.start, best.limit)
    )
    marks[first:limit] = "said"
    if any(exact_match(best.text, one, run.corpus.language) for one in answers):
      # The block's own spelling may have another article.
      answers.append(best.text)
  spans = find_token_spans(
    token_ids, np.array([0, len(token_ids)]), map(words.encode, answers)
  )
  is_inside = np.append(words.is_continuation[token_ids], False)
  for start, width in zip(
    spans.start.tolist(), spans.width.tolist(), strict=True
  ):
    # Part of a word does not count as the answer.
    if not (is_inside[start] or is_inside[start + width]):
      first, _ = block.byte_ranges[start]
      _, limit = block.byte_ranges[start + width - 1]
      marks[first:limit] = "answer"
  return marks


def _segments(body: bytes, marks: np.ndarray) -> list[dict[str, str]]:
  """Splits a text into segments, each with a single mark."""
  changes = np.flatnonzero(marks[1:] != marks[:-1]) + 1
  bounds = [0, *changes.tolist(), len(marks)]
  return [
    {"text": body[first:limit].decode(), "mark": str(marks[first])}
    for first, limit in itertools.pairwise(bounds)
    if first < limit
  ]
