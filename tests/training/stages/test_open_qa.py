"""Which blocks and spans open QA takes for right, by either system's rule."""

import numpy as np
import pytest

from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.snapshots.loading import Snapshot
from realm_jax.training.stages.open_qa import OpenQa
from realm_jax.training.stages.stage import StageContext
from tests.training import tiny

TEXTS = (
  # ali ##ce: the characters of "Ali", and its token.
  "The young poet met Alice.",
  # Its token alone: the answer is written otherwise.
  "ALI met the poet.",
  # A name whose pieces have the same places as Alice's.
  "The young met Bobce.",
  # Its characters; the token does not fit in the joint input.
  "The young poet met the young poet Ali.",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
  return tiny.corpus_of(tmp_path_factory.mktemp("answers"), TEXTS)


class _Vectors(Snapshot):
  """A snapshot that has only vectors."""

  device_vectors = None

  def __init__(self):
    pass

  def vectors(self, rows):
    return np.zeros((*rows.shape, 1), np.float32)


def assemble(stage, corpus, answer, position=0, components=None):
  batch = tiny.asked(corpus, answer, position=position)
  rows = np.arange(len(TEXTS), dtype=np.int32)[None]
  retrieved = SearchResult(rows, np.zeros(rows.shape, np.float32))
  context = StageContext(
    components or tiny.components(),
    *(corpus, _Vectors(), tiny.BODY),
    answers=AnswersInBlocks(corpus),
  )
  return stage.features(batch, retrieved, context)[0]


@pytest.mark.parametrize(
  ("answer", "has_answer"),
  [
    ("Ali", [True, False, False, True]),
    ("young poet", [True, False, False, True]),
    ("^The", [True, False, True, True]),
    ("^ALI|poet ali", [False, True, False, True]),
  ],
)
def test_blocks_that_hold_an_answer(corpus, answer, has_answer):
  batch = assemble(OpenQa(num_read=2), corpus, answer)
  assert batch.has_answer.tolist() == [has_answer]


def test_spans_are_found_by_their_tokens_in_either_case(corpus):
  batch = assemble(OpenQa(num_read=4), corpus, "Ali")
  # The reader masks the last one, which it is not given.
  spans = [[0, 4, 0], [1, 0, 0], [3, 7, 0]]
  assert np.argwhere(batch.is_answer[0]).tolist() == spans
  # First those blocks that contain an answer.
  batch = assemble(OpenQa(num_read=2, read_gold=True), corpus, "Ali")
  assert batch.has_answer.tolist() == [[True, True, False, False]]
  assert np.argwhere(batch.is_answer[0]).tolist() == [[0, 4, 0], [1, 7, 0]]
