"""Dropped pages can be read again, and nothing written is lost."""

import numpy as np
import pytest

from realm_jax.files.local_disk import mapped_pages


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_mapped_file_reads_as_before(tmp_path, mode):
  np.save(tmp_path / "a.npy", np.arange(4096, dtype=np.float32))
  array = np.load(tmp_path / "a.npy", mmap_mode=mode)
  expected = np.arange(4096)
  if mode != "r":
    array[3] = expected[3] = -1
  mapped_pages.drop_pages(array[:2048].view(np.int32).view(np.float32))
  np.testing.assert_array_equal(array, expected)


def test_arrays_outside_mapped_files_are_left_alone():
  array = np.arange(10)
  array.flags.writeable = False
  mapped_pages.drop_pages(array[2:5])
  mapped_pages.drop_pages(np.frombuffer(b"12345678", np.uint8))
  np.testing.assert_array_equal(array, np.arange(10))
