"""The names of TPU slices."""

import pytest

from launch.jobs import LaunchError
from launch.tpu import parse_tpu


@pytest.mark.parametrize(
  ("name", "generation", "topology"),
  [
    ("v5litepod-64", "v5e", "8x8"),
    ("v5e-32", "v5e", "4x8"),
    ("v6e-256", "v6e", "16x16"),
    ("v6e-8", "v6e", "2x4"),
    ("v6e-1", "v6e", "1x1"),
    ("v5e:2x4", "v5e", "2x4"),
    ("v5litepod:4x4", "v5e", "4x4"),
    ("v5p:4x4x8", "v5p", "4x4x8"),
    ("v4:2x2x1", "v4", "2x2x1"),
  ],
)
def test_a_slice_has_a_generation_and_a_topology(name, generation, topology):
  assert parse_tpu(name) == (generation, topology)


@pytest.mark.parametrize(
  "name",
  [
    "",
    "64",
    "v5litepod",
    "v5e-48",
    "v5e-512",
    "v5p-64",
    "v5p:64",
    "v5e:8x",
    "-",
  ],
)
def test_any_other_name_is_refused_with_the_form_to_use(name: str):
  with pytest.raises(LaunchError, match="write GENERATION:TOPOLOGY"):
    parse_tpu(name)
