"""Which blocks were retrieved: from the trainer's files to the builder."""

import numpy as np

from realm_jax.generations.build.retrieved import (
  FOLDER,
  RetrievedBlocks,
  retrieved_counts,
)


def test_counts_of_all_processes_are_summed_and_the_latest_count_most(
  tmp_path, corpus
):
  first = RetrievedBlocks(tmp_path, process=0)
  second = RetrievedBlocks(tmp_path, process=1)
  first.add(np.array([[3, 4], [3, -1]]), corpus)
  first.add(np.array([[3]]), corpus)
  second.add(np.array([[4, 9]]), corpus)
  first.save(10, checkpoints=[0])
  second.save(10, checkpoints=[0])
  first.add(np.array([[9]]), corpus)
  first.save(20, checkpoints=[0, 10])
  first.save(30, checkpoints=[0, 10, 20])
  counts = retrieved_counts(tmp_path, corpus, until=20, decay=0.5)
  wanted = np.zeros(150)
  wanted[[3, 4, 9]] = 1.5, 1.0, 1.5
  np.testing.assert_array_equal(counts, wanted)


def test_files_go_with_their_checkpoints(tmp_path, corpus):
  counts = RetrievedBlocks(tmp_path)
  for step in range(10, 60, 10):
    counts.add(np.array([[step]]), corpus)
    counts.save(step, checkpoints=[0, step - 10])
  names = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
  assert names == ["00000040-00000.npy", "00000050-00000.npy"]


def test_what_cannot_be_read_or_is_not_known_counts_nothing(tmp_path, corpus):
  assert not retrieved_counts(tmp_path, corpus, until=9, decay=1.0).any()
  counts = RetrievedBlocks(tmp_path)
  counts.add(np.array([[1, 2]]), corpus)
  counts.save(10, checkpoints=[])
  path = tmp_path / FOLDER / "00000010-00000.npy"
  path.with_name("00000009-00000.npy").write_bytes(path.read_bytes()[:-3])
  path.with_name("00000008-00000.npy").write_bytes(b"")
  np.save(path.with_name("00000007-00000.npy"), np.arange(5))
  unknown = np.load(path)
  unknown["id"] = 10**9
  np.save(path.with_name("00000006-00000.npy"), unknown)
  found = retrieved_counts(tmp_path, corpus, until=10, decay=1.0)
  assert np.flatnonzero(found).tolist() == [1, 2]


def test_a_full_disk_does_not_end_training(tmp_path, corpus):
  (tmp_path / FOLDER).write_text("no folder")
  counts = RetrievedBlocks(tmp_path)
  counts.add(np.array([[1]]), corpus)
  counts.save(10, checkpoints=[])
