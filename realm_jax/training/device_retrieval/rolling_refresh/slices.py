"""How much of the corpus a step embeds again."""

import math

import numpy as np
from jaxtyping import Int

from realm_jax.indexes.exact import capacity_for
from realm_jax.retrieval.rolling_refresh import Slice
from realm_jax.training import useful_flops
from realm_jax.training.packing.packer import ShapeBucket, encoder_inputs
from realm_jax.training.packing.step_shapes import empty_arrays
from realm_jax.training.setup import StepSetup

# More blocks are looked at than fit in a slice on average, so that it is full
# where they are short, too.
_BLOCKS_LOOKED_AT = 1.25


def slice_for(
  setup: StepSetup,
  bucket: ShapeBucket,
  *,
  lengths: Int[np.ndarray, " n"] | None,
  blocks_of_device: int,
) -> Slice:
  """Returns what each device embeds at each step, by the configured share.

  Args:
    setup: Parts of the step.
    bucket: Usual number of rows of each group, for each encoder input.
    lengths: Tokens of each block of the corpus, where it is known.
    blocks_of_device: Number of blocks of each device, padding included.

  Raises:
    ValueError: The share is less than the arithmetic of one block.
  """
  config, models = setup.config, setup.inputs.models
  share = config.rolling_refresh.rolling_refresh_share
  row_length = row_length_of(setup)
  of_row = useful_flops.tower_flops(models.retriever, np.array([row_length]))
  of_step = _flops_of_step(setup, bucket) / setup.mesh.size
  num_rows = int(share * of_step / of_row)
  if num_rows < 1:
    least = math.ceil(1e6 * of_row / of_step) / 1e6
    raise ValueError(
      f"ROLLING_REFRESH_SHARE={share} is less than a block on each device, "
      f"which takes {least:g} of the arithmetic of a step's other parts; give "
      "that at least"
    )
  return slice_of_rows(
    setup,
    num_rows=num_rows,
    lengths=lengths,
    blocks_of_device=blocks_of_device,
  )


def slice_of_rows(
  setup: StepSetup,
  *,
  num_rows: int,
  lengths: Int[np.ndarray, " n"] | None,
  blocks_of_device: int,
) -> Slice:
  """Returns a slice of so many rows; see `slice_for`."""
  num_rows = min(num_rows, blocks_of_device)
  if not setup.config.pack or lengths is None:
    return Slice(num_rows, num_rows)
  row_length = row_length_of(setup)
  mean = min(float(lengths.mean()), row_length)
  num_blocks = int(_BLOCKS_LOOKED_AT * num_rows * row_length / mean)
  return Slice(num_rows, min(num_blocks, blocks_of_device))


def round_steps(part: Slice, num_blocks: int, *, devices: int) -> int:
  """Returns in how many steps, at most, every block is embedded again.

  Args:
    part: What each device embeds at each step.
    num_blocks: Number of blocks of the corpus.
    devices: Number of devices that divide them, as an exact index does.
  """
  share = capacity_for(num_blocks, devices=devices) // devices
  return -(-min(share, num_blocks) // part.num_rows)


def row_length_of(setup: StepSetup) -> int:
  """Returns the length of the block tower's input."""
  tokens = np.zeros((1, setup.config.data.block_length), np.int32)
  return setup.inputs.models.retriever.block_input(tokens).shape[1]


def _flops_of_step(setup: StepSetup, bucket: ShapeBucket) -> float:
  """Returns the operations of a step in full rows, on all devices together."""
  stage, inputs = setup.config.stage, setup.inputs
  arrays = empty_arrays(setup, setup.config.data.batch_size)
  example = stage.example(arrays, inputs)
  fields = useful_flops.sequence_lengths(example)
  lengths = {
    name: np.full(rows * inputs.groups.count, row_length.max())
    for (name, row_length), rows in zip(fields.items(), bucket, strict=True)
  }
  assert len(lengths) == len(encoder_inputs(example))
  return useful_flops.step_flops(inputs.models, example, lengths)
