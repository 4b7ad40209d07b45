"""Checksums are those that other programs compute."""

import hashlib

import pytest

from realm_jax.files.checksum import sha256_of


@pytest.mark.parametrize("drop_pages", [False, True])
@pytest.mark.parametrize("size", [0, 1, 8 << 20, (8 << 20) + 5])
def test_files_of_less_and_more_than_a_piece(tmp_path, size, drop_pages):
  data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
  path = tmp_path / "file"
  path.write_bytes(data)
  expected = hashlib.sha256(data).hexdigest()
  assert sha256_of(path, drop_pages=drop_pages) == expected


def test_a_missing_file(tmp_path):
  with pytest.raises(FileNotFoundError):
    sha256_of(tmp_path / "none")
