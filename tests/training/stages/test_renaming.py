"""Names that are exchanged, of which kinds, and where."""

import numpy as np

from realm_jax.training.stages.renaming import name_groups, permutation
from tests.training import tiny

PIECES = (
  "[PAD] [UNK] [CLS] [SEP] [MASK] . we met the new alice bob carol and in "
  "1815 1842"
)
TEXTS = (
  "We met Alice in 1815. We met Bob in 1842.",
  "In 1815 we met Carol and Bob.",
  "In 1842 we met New Bob.",
  # Mostly a word, and in one text a name.
  "We met in the carol.",
  "The carol we met.",
)


def _corpus(folder, texts):
  return tiny.corpus_of(folder, texts, pieces=PIECES, block_length=32)


def test_words_of_names_are_exchanged_with_those_of_their_kind_and_place(
  tmp_path,
):
  corpus = _corpus(tmp_path, TEXTS)
  pieces = corpus.vocabulary.pieces
  groups = name_groups(corpus)
  words = (sorted(pieces[token_id] for token_id in one) for one in groups)
  assert sorted(words) == [
    ["1815", "1842"],
    ["alice", "bob"],
    # Only this word begins a name of two.
    ["new"],
  ]
  named = np.concatenate(groups)
  seen = set()
  for seed in range(20):
    new_ids = permutation(corpus, np.random.default_rng(seed))
    for group in groups:
      assert sorted(new_ids[group]) == sorted(group)
    moved = np.flatnonzero(new_ids != np.arange(corpus.vocab_size))
    assert set(moved) <= set(named)
    seen.add(tuple(moved))
  # Either pair is exchanged or not.
  assert len(seen) == 4
