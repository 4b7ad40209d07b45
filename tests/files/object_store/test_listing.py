"""What a directory holds and whether a file has changed, by one request."""

import secrets

import pytest
from etils import epath

from realm_jax.files.object_store import listing


@pytest.fixture(params=["disk", "store"])
def folder(request, tmp_path):
  """A directory that is not there yet."""
  if request.param == "disk":
    return epath.Path(tmp_path / "folder")
  store = request.getfixturevalue("object_store")
  return epath.Path(store.path(secrets.token_hex(4)))


def test_names_are_those_of_files_and_folders(folder):
  assert listing.names_in(folder) == []
  (folder / "b" / "c").mkdir(parents=True)
  (folder / "b" / "c" / "file").write_text("1")
  (folder / "a").write_text("2")
  assert listing.names_in(folder) == ["a", "b"]
  assert listing.names_in(folder / "a") == []


def test_a_version_changes_whenever_a_file_is_written(folder):
  path = folder / "file"
  assert listing.version_of(path) is None
  folder.mkdir(parents=True)
  path.write_text("one")
  first = listing.version_of(path)
  assert path.read_text() == "one"
  assert first is not None and listing.version_of(path) == first
  path.unlink()
  path.write_text("two")
  assert listing.version_of(path) not in (None, first)


def test_times_of_one_storage_can_be_compared(folder):
  assert listing.storage_time(folder / "file") is None
  folder.mkdir(parents=True)
  for name in ("first", "second"):
    (folder / name).write_text(name)
  first, second = (
    listing.storage_time(folder / name) for name in ("first", "second")
  )
  assert 0 <= second - first < 60
