"""Batches as dictionaries with a row an example, and back."""

import jax
import numpy as np
import pytest

from realm_jax.t5x_engine.batch_arrays import BatchArrays
from tests.training import tiny


def one_example(stage: str) -> BatchArrays:
  """The layout of a stage's batches."""
  given = jax.tree.map(lambda array: array[:1], tiny.arrays(stage))
  return BatchArrays(tiny.laid_out(stage, given))


@pytest.mark.parametrize("stage", tiny.STAGES)
def test_every_array_has_a_row_an_example(stage):
  layout = one_example(stage)
  batch = tiny.batch(stage, groups=tiny.BATCH)
  arrays = layout.flatten(batch)
  specs = layout.specs(tiny.BATCH)
  assert arrays.keys() == specs.keys()
  for name, array in arrays.items():
    assert (array.shape, array.dtype) == (specs[name].shape, specs[name].dtype)
    assert len(array) == tiny.BATCH
  back = layout.unflatten(arrays)
  assert jax.tree.structure(back) == jax.tree.structure(batch)
  jax.tree.map(np.testing.assert_array_equal, back, batch)


def test_arrays_have_the_names_of_the_fields():
  assert one_example("inverse_cloze").specs(8).keys() == {
    *(
      f"{side}/{field}"
      for side in ("queries", "blocks")
      for field in ("token_ids", "sequence", "position", "starts", "numbers")
    ),
    "removed",
  }
  candidates = one_example("pretraining").specs(8)["blocks/token_ids"]
  assert candidates.shape == (8, tiny.CANDIDATES, tiny.BLOCK)


@pytest.mark.parametrize("stage", tiny.STAGES)
def test_an_example_is_the_same_alone_and_among_others(stage):
  """So that any two examples may be on different processes."""
  layout = one_example(stage)
  given = tiny.arrays(stage)
  whole = layout.flatten(tiny.laid_out(stage, given, groups=tiny.BATCH))
  third = jax.tree.map(lambda array: array[2:3], given)
  alone = layout.flatten(tiny.laid_out(stage, third))
  for name, array in alone.items():
    # Numbers count the sequences of a batch; a block's follows from its tokens.
    if not name.endswith("/numbers"):
      np.testing.assert_array_equal(array[0], whole[name][2])
