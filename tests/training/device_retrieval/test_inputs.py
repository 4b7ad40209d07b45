"""A batch that a program makes of candidates is that of the host."""

import jax
import numpy as np
import pytest

from realm_jax.models.packing import content_numbers
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.retrieval.device_candidates import Candidates
from realm_jax.training.device_retrieval.inputs import lay_out
from realm_jax.training.packing.packer import (
  Packer,
  encoder_inputs,
  largest_bucket,
  needed_bucket,
)
from tests.training import tiny

_DEVICES = 2
# As E5's retrievers read.
_PREFIXES = {"block_prefix": (9,), "query_prefix": (7, 8)}


def _arrays():
  """Queries that share candidates, above all the null block."""
  arrays = tiny.arrays("pretraining", seed=15)
  arrays["candidates"][1, 1:] = arrays["candidates"][0, 1:]
  arrays["candidates"][:, 0] = arrays["candidates"][0, 0]
  return arrays


def _laid_out(arrays, bucket, *, num_parts, **settings):
  retriever, reader = tiny.models(**settings)
  mesh = make_mesh(devices=jax.devices()[:_DEVICES])
  tokens = arrays["candidates"]
  flat = retriever.block_input(tokens.reshape(-1, tokens.shape[-1]))
  numbers = content_numbers(flat).reshape(tokens.shape[:2])
  given = arrays["query"], Candidates(tokens, numbers), arrays["masks"]
  query, candidates, masks = rules.to_devices(given, mesh)

  @jax.jit
  def laid_out(query, candidates, masks):
    return lay_out(
      retriever,
      reader,
      query,
      candidates,
      masks,
      bucket=bucket,
      num_parts=num_parts,
      mesh=mesh,
    )

  return laid_out(query, candidates, masks)


def _assert_equal(found, expected):
  np.testing.assert_array_equal(found.block_index, expected.block_index)
  jax.tree.map(np.testing.assert_array_equal, found.masks, expected.masks)
  for rows, wanted in zip(
    encoder_inputs(found), encoder_inputs(expected), strict=True
  ):
    assert type(rows) is type(wanted)
    for name, array in wanted._asdict().items():
      if name != "numbers":
        np.testing.assert_array_equal(getattr(rows, name), array, err_msg=name)
    # No token has the number of an empty sequence.
    size = wanted.numbers.shape[1]
    by_group = np.split(wanted.sequence, len(wanted.starts))
    for group, sequence in enumerate(by_group):
      is_used = np.isin(np.arange(size), sequence)
      np.testing.assert_array_equal(
        rows.numbers[group][is_used], wanted.numbers[group][is_used]
      )


@pytest.mark.parametrize(("num_parts", "settings"), [(1, {}), (2, _PREFIXES)])
def test_rows_are_those_of_the_host(num_parts, settings):
  arrays, groups = _arrays(), _DEVICES * num_parts
  batch = tiny.host_batch("pretraining", arrays, groups=groups, **settings)
  tight = needed_bucket(batch, groups=groups)
  largest = largest_bucket(batch, groups=groups)
  made = _laid_out(arrays, tight, num_parts=num_parts, **settings)
  assert made.fits
  _assert_equal(made.packed, Packer([tight], groups=groups)(batch))
  _assert_equal(
    made.padded, Packer([largest], groups=groups, pack=False)(batch)
  )


@pytest.mark.parametrize("encoder_input", range(3))
def test_one_row_too_few_is_noticed(encoder_input):
  arrays = _arrays()
  batch = tiny.host_batch("pretraining", arrays, groups=_DEVICES)
  bucket = list(needed_bucket(batch, groups=_DEVICES))
  bucket[encoder_input] -= 1
  assert not _laid_out(arrays, tuple(bucket), num_parts=1).fits


def test_without_packing_there_is_nothing_that_could_not_fit():
  made = _laid_out(_arrays(), None, num_parts=1)
  assert made.packed is None and made.fits is None
