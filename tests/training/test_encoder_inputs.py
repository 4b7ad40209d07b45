"""One program has rows of several numbers, which follow from the corpus."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from realm_jax.models.sequences import PaddedSequences
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training import bin_counts
from realm_jax.training.encoder_inputs import PackingLayout
from realm_jax.training.stages.stage import ExampleArrays
from tests.snapshots.conftest import make_corpus
from tests.training import tiny

_STAGE = "inverse_cloze"


def test_the_first_rows_that_hold_the_sequences_of_all_devices():
  num_devices = 2
  mesh = make_mesh(devices=jax.devices()[:num_devices])
  size = tiny.BATCH // num_devices
  layout = PackingLayout(mesh, ((1, 1), (2, size), (size - 1, size)))
  rows_of = functools.partial(tiny.OF_STAGE[_STAGE].inputs, tiny.models())

  def count(inputs):
    """Bins of the queries that a program takes on all devices; 0 pads."""
    is_padded = isinstance(inputs.queries, PaddedSequences)
    return jnp.int32(0 if is_padded else len(inputs.queries.token_ids))

  @jax.jit
  def taken(batch):
    return layout.with_inputs(rows_of, batch, count)

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
    placed = sharding.to_devices(batch._replace(query=query), mesh)
    with jax.set_mesh(mesh):
      assert taken(placed) == expected, number


def test_row_counts_follow_from_the_corpus(tmp_path, monkeypatch):
  corpus = make_corpus(tmp_path, num_blocks=40)
  # A quarter of a block's length is used.
  block_length = 4 * int(corpus.lengths.mean())

  def choose(at_most, *, batch_size=16, groups=2):
    query = np.zeros((batch_size, 12), np.int32)
    candidates = np.zeros((batch_size, 1, block_length), np.int32)
    return bin_counts.choose_bin_counts(
      tiny.OF_STAGE[_STAGE],
      tiny.models(),
      ExampleArrays(query, candidates, 0, vector_size=4, max_masks=0),
      corpus,
      groups=groups,
      at_most=at_most,
    )

  counts = choose(5)
  assert counts == choose(5)
  # The largest, a row for each sequence, is none of them.
  assert 2 <= len(counts) <= 4
  blocks = [rows for _, rows in counts]
  assert blocks == sorted(blocks)
  assert blocks[-1] < 8
  assert choose(1) == ()
  # Where it saves enough, there are also the rows that half of them need.
  monkeypatch.setattr(bin_counts, "_MIN_SAVING", 0.01)
  (usual,) = choose(2, batch_size=32, groups=1)
  half, more = choose(3, batch_size=32, groups=1)
  assert half[1] < usual[1]
  assert more == usual
