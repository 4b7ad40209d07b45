"""A corpus directory appears whole, or not at all."""

import errno
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from realm_jax.corpus import versions
from realm_jax.corpus.building import directory_writer
from realm_jax.corpus.building.directory_writer import CorpusDirectoryWriter
from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.files.local_disk.disk_full import DiskFullError
from realm_jax.files.whole.whole_directory import TargetError

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "velt")


def add_documents(writer: CorpusDirectoryWriter, count: int) -> None:
  for i in range(count):
    writer.shard.add_document(
      document_id=str(i), title="Velt", url="", num_blocks=1
    )
    writer.shard.add_block(
      block_id=i,
      content_hash=-i,
      title_length=1,
      token_ids=np.array([6, 5]),
      byte_ranges=np.array([[0, 3]]),
      sentences=np.array([[0, 1]]),
      salient_spans=np.zeros((0, 2), int),
      salient_span_kinds=[],
      body=b"the",
    )


def write(directory: Path, count: int, **arguments) -> Corpus:
  with CorpusDirectoryWriter.open(
    directory, pieces=PIECES, blocks_per_shard=4, **arguments
  ) as writer:
    add_documents(writer, count)
    writer.finish(version=1, block_length=8, summary={})
  return Corpus.open(directory)


def names(directory: Path) -> list[str]:
  return sorted(path.name for path in directory.iterdir())


def test_nothing_is_left_of_a_build_that_fails(tmp_path):
  with (
    pytest.raises(KeyboardInterrupt),
    CorpusDirectoryWriter.open(
      tmp_path / "corpus", pieces=PIECES, blocks_per_shard=4
    ) as writer,
  ):
    add_documents(writer, 5)
    raise KeyboardInterrupt
  assert names(tmp_path) == []


def test_a_full_disk_is_explained(tmp_path):
  with (
    pytest.raises(
      DiskFullError, match=r"disk of .* is full .* was not written: free some"
    ),
    CorpusDirectoryWriter.open(
      tmp_path / "corpus", pieces=PIECES, blocks_per_shard=4
    ) as writer,
  ):
    add_documents(writer, 5)
    raise OSError(errno.ENOSPC, "No space left on device")
  assert names(tmp_path) == []


_BUILD_AND_HANG = """
import pathlib, sys, time
from tests.corpus.building import test_directory_writer as tests
with tests.CorpusDirectoryWriter.open(
  pathlib.Path(sys.argv[1]), pieces=tests.PIECES, blocks_per_shard=4
) as writer:
  tests.add_documents(writer, 6)
  print("written", flush=True)
  time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_build_leaves_no_half_corpus(tmp_path, command_environment):
  directory = tmp_path / "corpus"
  with subprocess.Popen(
    [sys.executable, "-c", _BUILD_AND_HANG, str(directory)],
    env=command_environment,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    # Meanwhile nobody else builds the same corpus, and nobody reads it.
    with pytest.raises(TargetError, match="another process is building"):
      write(directory, 3)
    with pytest.raises(CorpusError, match="no corpus in"):
      Corpus.open(directory)
    process.kill()
  assert names(tmp_path) == [".corpus.building"]
  assert write(directory, 3).num_blocks == 3
  assert names(tmp_path) == ["corpus"]


def test_replacing_keeps_readers_of_the_old_one(tmp_path):
  old = write(tmp_path / "corpus", 5)
  old_ids = old.block_ids  # Mapped, not read.
  new = write(tmp_path / "corpus", 2, overwrite=True)
  assert (old_ids[:4] == [0, 1, 2, 3]).all()
  assert new.num_blocks == 2
  assert names(tmp_path) == ["corpus"]


def test_on_an_object_store_earlier_versions_go_with_their_corpus(
  tmp_path, monkeypatch
):
  target = epath.Path(tmp_path / "corpus")
  write(Path(target), 9)
  for folder in ("versions", "removed"):
    (target / folder).mkdir()
    (target / folder / "00000001.json").write_text("of another corpus")
  monkeypatch.setattr(directory_writer, "is_remote", lambda path: True)
  with CorpusDirectoryWriter.open(
    target, pieces=PIECES, blocks_per_shard=4, overwrite=True
  ) as writer:
    add_documents(writer, 3)
    writer.finish(version=1, block_length=8, summary={})
  assert versions.earlier_versions(target) == []
  assert not (target / "removed").exists()
  Corpus.open(target).verify()
