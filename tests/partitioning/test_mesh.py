"""The mesh: its sizes, and which devices are neighbours."""

import itertools
from unittest import mock

import jax
import numpy as np
import pytest

from realm_jax.partitioning.mesh import make_mesh


@pytest.mark.parametrize(
  ("fsdp", "model_parallelism", "shape"),
  [
    (1, 1, (8, 1, 1)),
    (1, 2, (4, 1, 2)),
    (4, 1, (2, 4, 1)),
    (2, 2, (2, 2, 2)),
    (1, 8, (1, 1, 8)),
  ],
)
def test_the_mesh_has_all_devices(fsdp, model_parallelism, shape):
  mesh = make_mesh(fsdp=fsdp, model_parallelism=model_parallelism)
  assert mesh.axis_names == ("data", "fsdp", "model")
  assert mesh.devices.shape == shape
  # Devices of a process come one after the other.
  assert mesh.devices.ravel().tolist() == jax.devices()


@pytest.mark.parametrize(
  ("fsdp", "model_parallelism"), [(1, 3), (1, 0), (-1, 1), (16, 1), (4, 4)]
)
def test_sizes_that_do_not_divide_the_devices_are_refused(
  fsdp, model_parallelism
):
  with pytest.raises(
    ValueError, match=r"the 8 devices; change FSDP or MODEL_PARALLELISM"
  ):
    make_mesh(fsdp=fsdp, model_parallelism=model_parallelism)


def _chips(sizes, *, slices=1):
  """Stand-ins for the devices of TPU slices of some sizes."""

  def chip(number, slice_index, *coords):
    device = mock.NonCallableMock(spec=jax.Device)
    device.configure_mock(
      id=number,
      platform="tpu",
      device_kind="TPU v4",
      process_index=0,
      slice_index=slice_index,
      coords=coords,
      core_on_chip=0,
    )
    return device

  places = itertools.product(range(slices), *map(range, sizes))
  return [chip(number, *place) for number, place in enumerate(places)]


def _distance(one, other):
  return np.abs(np.subtract(one.coords, other.coords)).sum()


def test_the_model_axis_is_a_square_of_neighbouring_chips():
  devices = make_mesh(
    fsdp=4, model_parallelism=4, devices=_chips((2, 2, 4))
  ).devices
  assert devices.shape == (1, 4, 4)
  for group in devices.reshape(-1, 4):
    assert max(_distance(a, b) for a in group for b in group) == 2
  # The other axis is a line of chips, each next to the one before.
  for line in devices[0].T:
    assert all(
      _distance(a, b) == 1 for a, b in itertools.pairwise(line.tolist())
    )


def test_an_axis_may_be_part_of_a_physical_axis():
  devices = make_mesh(fsdp=2, devices=_chips((4, 4, 1))).devices
  assert devices.shape == (8, 2, 1)
  assert all(_distance(a, b) == 1 for a, b in devices[..., 0])


def test_only_the_data_axis_crosses_slices():
  chips = _chips((2, 2, 1), slices=2)
  devices = make_mesh(fsdp=2, model_parallelism=2, devices=chips).devices
  assert devices.shape == (2, 2, 2)
  assert [{c.slice_index for c in part.flat} for part in devices] == [{0}, {1}]
  with pytest.raises(ValueError, match="the 4 devices in each of 2 slices"):
    make_mesh(fsdp=8, devices=chips)
