"""Span selection: where a block has what a sentence lacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batches import Batch
from realm_jax.training import stage_losses
from realm_jax.training.batches import SpanSelectionBatch
from realm_jax.training.packing.packer import padded
from realm_jax.training.stages.span_selection import SpanSelection
from realm_jax.training.stages.stage import ModelInputs, Models, StageContext
from tests.training import tiny

STAGE = SpanSelection(max_answer_width=tiny.WIDTH)


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
  inputs = ModelInputs(Models(*tiny.models()))
  context = StageContext(inputs, _Corpus(), None, tiny.BLOCK)
  none = np.zeros((2, 0), np.int32)
  retrieved = SearchResult(none, none.astype(np.float32))
  return STAGE.assemble(batch, retrieved, context)[0]


def test_answers_are_found_in_the_body_alone():
  made = _assembled()
  assert np.argwhere(made.is_answer).tolist() == [[0, 0, 0, 1], [0, 0, 3, 1]]
  # `[CLS] 9 [MASK] [SEP] body [SEP]`
  assert made.body_start.tolist() == [[4], [4]]
  assert made.body_length.tolist() == [[5], [1]]


def test_the_loss_is_of_examples_with_an_answer():
  made = jax.tree.map(jnp.asarray, padded(_assembled()))
  assert isinstance(made, SpanSelectionBatch)
  reader = tiny.models()[1]

  @jax.jit
  def run(params):
    return (
      stage_losses.span_selection(reader, params, made),
      stage_losses.read_spans(reader, params["reader"], made, None),
    )

  both, spans = run(tiny.parameters("open_qa"))
  assert float(both.metrics["recall_read"].mean) == 0.5
  scores = np.where(spans.is_span[0, 0], spans.logits[0, 0], -np.inf)
  chosen = np.array([scores[0, 1], scores[3, 1]])
  by_hand = np.log(np.exp(scores).sum()) - np.log(np.exp(chosen).sum())
  assert float(both.loss.total) == pytest.approx(by_hand, rel=1e-5)


def test_the_widths_of_stage_and_reader():
  with pytest.raises(ValueError, match=r"=2, but SpanSelection.*=10; bind"):
    SpanSelection().loss(Models(*tiny.models()))
