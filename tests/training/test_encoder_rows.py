"""One program has rows of several numbers, which follow from the corpus."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.models.sequences import PaddedSequences
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.encoder_rows import (
  Candidates,
  RowLayout,
  distinct_blocks,
)
from realm_jax.training.row_counts import choose_row_counts
from realm_jax.training.stages.stage import ExampleArrays, Models
from tests.generations.conftest import make_corpus
from tests.training import tiny

_STAGE = "inverse_cloze"


def _taken(layout, batch):
  """Rows of the queries that a program takes on all devices; 0 pads."""

  def compute(rows):
    is_padded = isinstance(rows.queries, PaddedSequences)
    return jnp.int32(0 if is_padded else len(rows.queries.token_ids))

  rows_of = tiny.functions(_STAGE)["rows_of"]

  @jax.jit
  def take(batch):
    numbers = jnp.arange(tiny.BATCH, dtype=jnp.uint32)
    return layout.with_rows(
      lambda given: rows_of(*given), (batch, numbers), compute
    )

  with jax.set_mesh(layout.mesh):
    return int(take(sharding.to_devices(batch, layout.mesh)))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_the_first_rows_that_hold_the_sequences_of_all_devices(num_devices):
  mesh = make_mesh(devices=jax.devices()[:num_devices])
  size = tiny.BATCH // num_devices
  layout = RowLayout(mesh, ((1, 1), (2, size), (size - 1, size)))
  batch = tiny.batch(_STAGE)
  # Of the first device, so many queries take a row each. The others have one
  # token each.
  for number, expected in (
    (0, 2 * num_devices),
    (size - 2, (size - 1) * num_devices),
    (size, 0),
  ):
    query = np.zeros_like(batch.query)
    query[:, :1] = 9
    query[:number] = 9
    found = _taken(layout, batch._replace(query=query))
    assert found == expected, number


def test_each_distinct_block_is_embedded_once():
  batch = tiny.batch("pretraining").candidates
  tokens, numbers = batch.tokens.copy(), batch.numbers.copy()
  tokens[:, 0], numbers[:, 0] = tokens[0, 0], numbers[0, 0]
  retriever = tiny.models()[0]
  rows, index = jax.jit(functools.partial(distinct_blocks, retriever))(
    Candidates(tokens, numbers)
  )
  flat = tokens.reshape(-1, tokens.shape[-1])
  np.testing.assert_array_equal(np.asarray(rows.token_ids)[index[0]], flat)
  np.testing.assert_array_equal(
    np.asarray(rows.numbers)[index[0]], numbers.reshape(-1)
  )
  distinct = len(np.unique(flat, axis=0))
  assert np.count_nonzero(np.asarray(rows.token_ids).any(axis=1)) == distinct


def test_row_counts_follow_from_the_corpus(tmp_path):
  # A quarter of a block's length is used.
  corpus = make_corpus(tmp_path, num_blocks=40)
  block_length = 4 * int(corpus.lengths.mean())
  shapes = ExampleArrays(
    np.zeros((16, 12), np.int32),
    np.zeros((16, 1, block_length), np.int32),
    num_searched=0,
    vector_size=4,
    max_masks=0,
  )
  choose = functools.partial(
    choose_row_counts,
    tiny.OF_STAGE[_STAGE],
    Models(*tiny.models()),
    shapes,
    corpus,
    groups=2,
  )
  counts = choose(at_most=5)
  assert counts == choose(at_most=5)
  # The largest, a row for each sequence, is none of them.
  assert 2 <= len(counts) <= 4
  blocks = [rows for _, rows in counts]
  assert blocks == sorted(blocks)
  assert blocks[-1] < 8
  # The first is what most batches need, however many there are.
  assert choose(at_most=2) == counts[:1]
  assert choose(at_most=1) == ()
