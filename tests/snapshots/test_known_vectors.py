"""Which vectors of an earlier corpus version a snapshot keeps."""

from pathlib import Path

import numpy as np

from realm_jax.corpus.store import NULL_ROW
from realm_jax.corpus.update import update_corpus
from realm_jax.partitioning.agreement import Agreement
from realm_jax.snapshots.known_vectors import known_vectors
from realm_jax.snapshots.store import SnapshotStore
from tests.json_lines import write_lines
from tests.snapshots.conftest import (
  files_of,
  flip,
  make_corpus,
  publish_one,
)


def test_only_a_sound_snapshot_of_the_step_and_model_is_kept(tmp_path):
  corpus = make_corpus(tmp_path / "corpus", num_blocks=30)
  snapshots_dir = tmp_path / "snapshots"
  publish_one(snapshots_dir, corpus, 500, model="model")

  def kept(corpus, step=500, model="model"):
    return known_vectors(
      SnapshotStore(snapshots_dir),
      step,
      corpus=corpus,
      model=model,
      dtype="float32",
      agreement=Agreement("test"),
    )

  # Nothing is new in the same version.
  assert kept(corpus) is None
  changes = write_lines(
    Path(tmp_path / "changes.jsonl"),
    [
      {"id": "d7", "remove": True},
      {"id": "new", "title": "w11", "text": "w50 w51."},
    ],
  )
  update_corpus([str(changes)], corpus.source, tagger=None)
  newest = corpus.newest()
  known = kept(newest)
  assert known.oldest_step == 500
  is_new = known.rows == NULL_ROW
  assert np.flatnonzero(is_new).tolist() == [
    i
    for i, block in enumerate(newest.block_ids)
    if block not in corpus.block_ids
  ]
  np.testing.assert_array_equal(
    corpus.block_ids[known.rows[~is_new]], newest.block_ids[~is_new]
  )
  assert kept(newest, step=501) is None
  assert kept(newest, model="another") is None
  flip(next(files_of(snapshots_dir, 500).glob("embeddings-*.npy")))
  assert kept(newest) is None
