"""TPU slices: names, topologies and hosts."""

import pytest

from launch.launch_flags import LaunchError
from launch.slices import parse_slice


@pytest.mark.parametrize(
  ("name", "generation", "topology", "chips", "hosts", "machine"),
  [
    ("v5litepod-1", "v5e", "1x1", 1, 1, "ct5lp-hightpu-1t"),
    ("v5litepod-16", "v5e", "4x4", 16, 4, "ct5lp-hightpu-4t"),
    ("v5litepod:16x16", "v5e", "16x16", 256, 64, "ct5lp-hightpu-4t"),
    ("v6e-1", "v6e", "1x1", 1, 1, "ct6e-standard-1t"),
    ("v6e-8", "v6e", "2x4", 8, 1, "ct6e-standard-8t"),
    # The sizes of these are TensorCores, two a chip.
    ("v4-8", "v4", "2x2x1", 4, 1, "ct4p-hightpu-4t"),
    ("v4-16", "v4", "2x2x2", 8, 2, "ct4p-hightpu-4t"),
    ("v4:4x4x12", "v4", "4x4x12", 192, 48, "ct4p-hightpu-4t"),
    ("v5p-128", "v5p", "4x4x4", 64, 16, "ct5p-hightpu-4t"),
  ],
)
def test_a_slice_has_chips_and_hosts(
  name, generation, topology, chips, hosts, machine
):
  tpu = parse_slice(name)
  assert (tpu.generation.name, tpu.topology) == (generation, topology)
  assert (tpu.chips, tpu.hosts, tpu.machine_type) == (chips, hosts, machine)


@pytest.mark.parametrize(
  ("name", "said"),
  [
    ("", "write GENERATION-SIZE"),
    ("64", "write GENERATION-SIZE"),
    ("v9-8", "none of the TPU slices of v4, v5e, v5p, v6e"),
    ("v5e", "v5e has no such slice"),
    ("v5e:8x", "v5e has no such slice"),
    # No slice has such a number of chips.
    ("v5e-48", "numbers of chips: 1, 4, 8, 16"),
    ("v5p-4", "numbers of TensorCores, two a chip: 8, 16"),
    ("v5p:64x1", "v5p has no such slice"),
    ("v5p:3x3x3", "v5p has no such slice"),
  ],
)
def test_any_other_name_is_refused_with_those_known(name: str, said: str):
  with pytest.raises(LaunchError, match=said):
    parse_slice(name)
