"""A directory appears complete, and one process at a time prepares it."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.runs.object_store import StoreFault
from realm_jax.files.whole import whole_directory
from realm_jax.files.whole.whole_directory import TargetError


def names(directory):
  return sorted(path.name for path in directory.iterdir())


def build(target: Path, text: str, *, overwrite: bool = False) -> None:
  with whole_directory.staging_directory(target) as staging:
    assert names(staging) == []
    (staging / "sub").mkdir()
    (staging / "sub" / "file").write_text(text)
    whole_directory.rename_into_place(staging, target, overwrite=overwrite)


def test_a_directory_is_made_and_replaced(tmp_path):
  target = tmp_path / "new" / "target"
  build(target, "first")
  assert (target / "sub" / "file").read_text() == "first"
  with pytest.raises(OSError):
    build(target, "second")
  assert (target / "sub" / "file").read_text() == "first"
  build(target, "second", overwrite=True)
  assert (target / "sub" / "file").read_text() == "second"
  assert names(tmp_path / "new") == ["target"]


def test_a_block_that_raises_leaves_nothing(tmp_path):
  with (
    pytest.raises(KeyboardInterrupt),
    whole_directory.staging_directory(tmp_path / "target") as staging,
  ):
    (staging / "file").touch()
    raise KeyboardInterrupt
  assert names(tmp_path) == []


def test_a_second_writer_of_the_same_target_is_refused(tmp_path):
  target = tmp_path / "target"
  with whole_directory.staging_directory(target):
    with pytest.raises(TargetError, match="another process is building"):
      build(target, "text")
    build(tmp_path / "other", "text")
  build(target, "text")


_PREPARE_AND_DIE = """
import os, pathlib, sys
from realm_jax.files.whole import whole_directory
with whole_directory.staging_directory(pathlib.Path(sys.argv[1])) as staging:
  (staging / "half").mkdir()
  os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_left_is_removed(tmp_path, command_environment):
  target = tmp_path / "target"
  subprocess.run(
    [sys.executable, "-c", _PREPARE_AND_DIE, str(target)],
    env=command_environment,
    check=False,
  )
  assert names(tmp_path) == [".target.building"]
  assert names(tmp_path / ".target.building") == ["half"]
  build(target, "text")
  assert names(tmp_path) == ["target"]
  assert names(target) == ["sub"]


def test_an_object_store_is_prepared_in_a_temporary_folder():
  with whole_directory.staging_directory("gs://bucket/corpus") as staging:
    assert staging.is_dir()
  assert not staging.exists()


def test_the_file_that_makes_a_target_valid_is_uploaded_last(
  object_store, tmp_path
):
  (tmp_path / "sub").mkdir()
  for name in ("a.json", "b", "sub/c"):
    (tmp_path / name).write_text(name)
  target = object_store.path("uploaded_last")
  object_store.inject(StoreFault("refuse", "^POST /upload", status=403))
  with pytest.raises(OSError, match="Forbidden"):
    whole_directory.upload_directory(tmp_path, target, last="a.json")
  assert "uploaded_last/a.json" not in object_store.names("uploaded_last")
  whole_directory.upload_directory(tmp_path, target, last="a.json")
  for name in ("a.json", "b", "sub/c"):
    assert object_store.read(f"uploaded_last/{name}") == name.encode()


def test_targets_that_cannot_be_replaced_are_refused(tmp_path):
  whole_directory.check_target(tmp_path / "new")
  whole_directory.check_target(tmp_path)
  whole_directory.check_same_disk(tmp_path)
  (tmp_path / "file").touch()
  with pytest.raises(TargetError, match="is a file"):
    whole_directory.check_target(tmp_path / "file")
  with pytest.raises(TargetError, match="name a new directory in it"):
    whole_directory.check_target("/")
  with pytest.raises(TargetError, match="such as /new"):
    whole_directory.check_same_disk("/")
