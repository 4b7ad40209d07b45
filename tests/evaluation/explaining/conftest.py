"""An explainer of the tiny world's checkpoint, and its figures by hand."""

import jax
import numpy as np
import pytest

from realm_jax.evaluation.explaining.explainer import (
  Explainer,
  ExplainingConfig,
  load_explainer,
)
from realm_jax.models import sequences
from tests import tiny_world

NUM_CANDIDATES = 6
_NUM_MASKS = 2


@pytest.fixture(scope="module")
def explainer(source, one_device) -> Explainer:
  """Its heads are both random, so that it takes sentences and questions."""
  return load_explainer(
    source=source, config=ExplainingConfig(num_candidates=NUM_CANDIDATES)
  )


class ByHand:
  """What the modules themselves compute for a query and some blocks.

  Always for six blocks and two masks, so that both are compiled once.
  """

  def __init__(self, world):
    self._corpus, self._models = world.corpus, world.models()
    self._vectors = jax.jit(self._models.retriever.apply)
    self._read = jax.jit(self._logits)

  def _logits(self, params, query, blocks, masks):
    reader = self._models.reader
    inputs = sequences.padded(reader.join(query, blocks).token_ids)
    return reader.apply({"params": params}, inputs, masks, method="masked_lm")

  def _query(self, pieces) -> np.ndarray:
    """Returns `[CLS] x [SEP]` of wordpieces."""
    words = self._corpus.vocabulary
    query = np.zeros((1, tiny_world.QUERY_LENGTH), np.int32)
    inside = ["[CLS]", *pieces, "[SEP]"]
    query[0, : len(inside)] = [words.pieces.index(piece) for piece in inside]
    return query

  def _blocks(self, rows) -> np.ndarray:
    padded = [*rows, *[-1] * (NUM_CANDIDATES - len(rows))]
    return self._corpus.gather(np.array([padded]), tiny_world.BLOCK_LENGTH)

  def scores(self, params, pieces, rows) -> np.ndarray:
    """Returns f(x,z) of blocks."""
    parts = []
    for start in range(0, len(rows), NUM_CANDIDATES):
      own = rows[start : start + NUM_CANDIDATES]
      x, z = self._vectors(
        {"params": params["retriever"]}, self._query(pieces), self._blocks(own)
      )
      parts.append(np.asarray(z[0] @ x[0])[: len(own)])
    return np.concatenate(parts)

  def probabilities(self, params, pieces, rows) -> np.ndarray:
    """Returns p(·|z,x) at one or two masks, as an array [k m v]."""
    masks = [i for i, piece in enumerate(pieces, 1) if piece == "[MASK]"]
    logits = self._read(
      params["reader"],
      self._query(pieces),
      self._blocks(rows),
      np.array([(masks * _NUM_MASKS)[:_NUM_MASKS]]),
    )
    odds = np.exp(np.float64(logits[0]))[: len(rows), : len(masks)]
    return odds / odds.sum(axis=-1, keepdims=True)

  def likelihoods(self, params, pieces, rows, answer) -> np.ndarray:
    """Returns p(y|z,x) of the wordpieces of an answer, by block."""
    found = self.probabilities(params, pieces, rows)
    words = self._corpus.vocabulary
    ids = [words.pieces.index(piece) for piece in answer]
    return np.prod([found[:, j, y] for j, y in enumerate(ids)], axis=0)


@pytest.fixture(scope="session")
def by_hand(world) -> ByHand:
  return ByHand(world)
