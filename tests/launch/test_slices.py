"""TPU slices: names, topologies and hosts."""

import pytest

from launch import LaunchError
from launch.slices import parse_slice


@pytest.mark.parametrize(
  ("name", "described"),
  [
    ("v5litepod-1", "v5e 1x1: 1 chips on 1 × ct5lp-hightpu-1t"),
    ("v5litepod-16", "v5e 4x4: 16 chips on 4 × ct5lp-hightpu-4t"),
    ("v5litepod:16x16", "v5e 16x16: 256 chips on 64 × ct5lp-hightpu-4t"),
    ("v6e-8", "v6e 2x4: 8 chips on 1 × ct6e-standard-8t"),
    # The sizes of these are TensorCores, two a chip.
    ("v4-8", "v4 2x2x1: 4 chips on 1 × ct4p-hightpu-4t"),
    ("v4-16", "v4 2x2x2: 8 chips on 2 × ct4p-hightpu-4t"),
    ("v4:4x4x12", "v4 4x4x12: 192 chips on 48 × ct4p-hightpu-4t"),
    ("v5p-128", "v5p 4x4x4: 64 chips on 16 × ct5p-hightpu-4t"),
  ],
)
def test_a_slice_has_chips_and_hosts(name, described):
  assert str(parse_slice(name)) == described


@pytest.mark.parametrize(
  ("name", "said"),
  [
    ("64", "write GENERATION-SIZE"),
    ("v9-8", "none of the TPU slices of v4, v5e, v5p, v6e"),
    ("v5e:8x", "write GENERATION-SIZE"),
    # No slice has such a number of chips.
    ("v5e-48", "its sizes are 1, 4, 8, 16"),
    ("v5p-4", "its sizes are 8, 16, 32"),
  ],
)
def test_any_other_name_is_refused_with_those_known(name, said):
  with pytest.raises(LaunchError, match=said):
    parse_slice(name)
