"""Span selection: where a block has what a sentence lacks."""

import functools

import jax
import numpy as np
import pytest

from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.training.stages import masked_words
from realm_jax.training.stages.span_selection import SpanSelection
from realm_jax.training.stages.stage import Encoders, Models, StageContext
from tests.training import tiny

STAGE = SpanSelection()


class _Vocabulary:
  sep_id = tiny.SEP


class _Corpus(Corpus):
  """A corpus that has only a vocabulary."""

  vocabulary = _Vocabulary()

  def __init__(self):
    pass


def _batch(blocks, answers):
  query = [tiny.CLS, 9, tiny.MASK, tiny.SEP, 0, 0]
  width = max(map(len, answers))
  tokens = [[answer + [0] * (width - len(answer))] for answer in answers]
  positions = np.arange(len(blocks))
  return Batch(
    arrays={
      "query": np.array([query] * len(blocks), np.int32),
      "block": np.array(blocks, np.int32),
    },
    host={"answer_tokens": np.array(tokens)},
    positions=positions,
    next_positions=positions + 1,
  )


def _assembled():
  title, sep = [tiny.CLS, 20, 21, tiny.SEP], tiny.SEP
  batch = _batch(
    [[*title, 20, 21, 7, 20, 21, sep], [*title, 20, sep, 0, 0, 0, 0]],
    [[20, 21], [21]],
  )
  context = StageContext(
    _Corpus(), None, tiny.BLOCK, max_answer_width=tiny.WIDTH
  )
  none = np.zeros((2, 0), np.int32)
  retrieved = SearchResult(none, none.astype(np.float32))
  return STAGE.assemble(batch, retrieved, context)[0]


def test_answers_are_found_in_the_body_alone():
  made = _assembled()
  assert np.argwhere(made.is_answer).tolist() == [[0, 0, 0, 1], [0, 0, 3, 1]]


def test_the_loss_is_of_examples_with_an_answer():
  models, made = Models(*tiny.models()), _assembled()

  def both(params, rows):
    encoders = Encoders(models, params, {})
    spans = masked_words.read_spans(encoders, made.blocks, rows)
    return STAGE.loss(encoders, made, rows), spans

  @jax.jit
  def run(params):
    return tiny.on_rows(
      functools.partial(STAGE.rows, models),
      made,
      functools.partial(both, params),
    )

  weighted, spans = run(tiny.parameters("open_qa"))
  scores = np.where(spans.is_span[0, 0], spans.logits[0, 0], -np.inf)
  chosen = np.array([scores[0, 1], scores[3, 1]])
  by_hand = np.log(np.exp(scores).sum()) - np.log(np.exp(chosen).sum())
  assert float(weighted.loss.total) == pytest.approx(by_hand, rel=1e-5)
