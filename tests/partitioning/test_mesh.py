"""The mesh: its sizes, and which devices are neighbours."""

import itertools
from unittest import mock

import jax
import pytest

from realm_jax.partitioning.mesh import make_mesh


@pytest.mark.parametrize(
  ("fsdp", "model_parallelism", "shape"),
  [(1, 1, (8, 1, 1)), (2, 2, (2, 2, 2)), (1, 8, (1, 1, 8))],
)
def test_the_mesh_has_all_devices(fsdp, model_parallelism, shape):
  mesh = make_mesh(fsdp=fsdp, model_parallelism=model_parallelism)
  assert mesh.axis_names == ("data", "fsdp", "model")
  assert mesh.devices.shape == shape
  # Devices of a process come one after the other.
  assert mesh.devices.ravel().tolist() == jax.devices()


def test_sizes_that_do_not_divide_the_devices_are_refused():
  with pytest.raises(ValueError, match="the 8 devices; change FSDP or MODEL_"):
    make_mesh(fsdp=4, model_parallelism=4)


def _device(number, platform, slice_index, *coords):
  return mock.NonCallableMock(
    spec=jax.Device,
    id=number,
    platform=platform,
    device_kind="TPU v4",
    process_index=0,
    slice_index=slice_index,
    coords=coords,
    core_on_chip=0,
  )


def test_only_the_data_axis_crosses_slices():
  places = itertools.product(range(2), range(2), range(2), range(1))
  chips = [_device(number, "tpu", *p) for number, p in enumerate(places)]
  devices = make_mesh(fsdp=2, model_parallelism=2, devices=chips).devices
  assert devices.shape == (2, 2, 2)
  assert [{c.slice_index for c in part.flat} for part in devices] == [{0}, {1}]


def test_any_axis_crosses_the_nvlink_domains_of_gpus():
  # jax numbers the domains, here the hosts, as slices.
  gpus = [_device(number, "gpu", number // 8) for number in range(16)]
  mesh = make_mesh(fsdp=16, devices=gpus)
  assert mesh.devices.shape == (1, 16, 1)
  assert mesh.devices.ravel().tolist() == gpus
