"""One program has rows of several numbers, which follow from the corpus."""

import numpy as np

from realm_jax.training import bin_counts
from realm_jax.training.stages.stage import ExampleArrays
from tests.snapshots.conftest import make_corpus
from tests.training import tiny

_STAGE = "inverse_cloze"


def test_row_counts_follow_from_the_corpus(tmp_path, monkeypatch):
  corpus = make_corpus(tmp_path, num_blocks=40)
  # A quarter of a block's length is used.
  block_length = 4 * int(corpus.lengths.mean())

  def choose(at_most, *, batch_size=16, groups=2):
    query = np.zeros((batch_size, 12), np.int32)
    candidates = np.zeros((batch_size, 1, block_length), np.int32)
    return bin_counts.choose_bin_counts(
      tiny.OF_STAGE[_STAGE],
      tiny.models(),
      ExampleArrays(query, candidates, 0, vector_size=4, max_masks=0),
      corpus,
      groups=groups,
      at_most=at_most,
    )

  counts = choose(5)
  assert counts == choose(5)
  # The largest, a row for each sequence, is none of them.
  assert 2 <= len(counts) <= 4
  blocks = [rows for _, rows in counts]
  assert blocks == sorted(blocks)
  assert blocks[-1] < 8
  assert choose(1) == ()
  # Where it saves enough, there are also the rows that half of them need.
  monkeypatch.setattr(bin_counts, "_MIN_SAVING", 0.01)
  (usual,) = choose(2, batch_size=32, groups=1)
  half, more = choose(3, batch_size=32, groups=1)
  assert half[1] < usual[1]
  assert more == usual
