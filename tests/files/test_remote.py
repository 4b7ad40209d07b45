"""Paths on object stores are told from local ones."""

from pathlib import Path

import pytest
from etils import epath

from realm_jax.files.remote import is_remote


@pytest.mark.parametrize("path", ["gs://bucket/run", epath.Path("gs://b/run")])
def test_an_object_store_is_remote(path):
  assert is_remote(path)


@pytest.mark.parametrize("path", ["run", "/a/b", Path("/a"), epath.Path("a:b")])
def test_a_local_path_is_not(path):
  assert not is_remote(path)
