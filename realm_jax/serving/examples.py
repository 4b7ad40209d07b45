"""Questions and sentences that the page offers to begin with."""

import itertools
from collections.abc import Iterator

import numpy as np
from etils import epath

from realm_jax.corpus.store import Corpus
from realm_jax.inputs.questions import read_json_lines
from realm_jax.text.wordpieces import MASK

_MAX_PIECES = 3
_MIN_WORDS = 6
_BLOCKS_PER_SENTENCE = 200


def example_questions(path: epath.PathLike, number: int) -> list[str]:
  """Returns the first questions of a file of JSON Lines.

  Raises:
    QuestionFileError: A line is no question.
    OSError: The file cannot be read.
  """
  questions = read_json_lines(epath.Path(path))
  return [q.question for q in itertools.islice(questions, number)]


def example_sentences(
  corpus: Corpus, number: int, *, query_length: int
) -> list[str]:
  """Returns sentences of the corpus, each with a salient span masked.

  There are none if the corpus has no salient spans. The same corpus gives the
  same ones.
  """
  rng = np.random.default_rng(0)
  count = min(corpus.num_blocks, number * _BLOCKS_PER_SENTENCE)
  rows = rng.choice(corpus.num_blocks, count, replace=False)
  found = (
    text
    for row in rows.tolist()
    for text in itertools.islice(_masked(corpus, row, query_length, rng), 1)
  )
  return list(itertools.islice(found, number))


def _masked(
  corpus: Corpus, row: int, query_length: int, rng: np.random.Generator
) -> Iterator[str]:
  """Yields sentences of a block with one of their salient spans masked."""
  block = corpus.block(row)
  body, ranges, spans = (
    block.body.encode(),
    block.byte_ranges,
    block.salient_spans,
  )
  for number in rng.permutation(len(spans)).tolist():
    start, limit = spans[number].tolist()
    for first, last in block.sentences.tolist():
      is_inside = first <= start and limit <= last
      fits = _MIN_WORDS <= last - first <= query_length - 2
      if is_inside and fits and limit - start <= _MAX_PIECES:
        before = body[ranges[first, 0] : ranges[start, 0]].decode()
        after = body[ranges[limit - 1, 1] : ranges[last - 1, 1]].decode()
        masks = " ".join([MASK] * (limit - start))
        yield " ".join(f"{before}{masks}{after}".split())
