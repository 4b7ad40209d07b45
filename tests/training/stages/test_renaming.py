"""Names that are exchanged, of which kinds, and where."""

import json

import numpy as np
import pytest

from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.training.stages.renaming import renaming_of

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
  (folder / "vocab.txt").write_text("\n".join(PIECES.split()))
  lines = [json.dumps({"title": "", "text": text}) for text in texts]
  (folder / "text.jsonl").write_text("\n".join(lines))
  build_corpus(
    [str(folder / "text.jsonl")],
    folder / "corpus",
    vocab=str(folder / "vocab.txt"),
    block_length=32,
  )
  return Corpus.open(folder / "corpus")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  return _corpus(tmp_path_factory.mktemp("renaming"), TEXTS)


def _words(corpus, token_ids):
  return {corpus.vocabulary.pieces[token_id] for token_id in token_ids}


def test_words_of_names_are_exchanged_with_those_of_their_kind_and_place(
  corpus,
):
  renaming = renaming_of(corpus)
  groups = [_words(corpus, group) for group in renaming.groups]
  assert sorted(map(sorted, groups)) == [
    ["1815", "1842"],
    ["alice", "bob"],
    # Only this word begins a name of two.
    ["new"],
  ]
  seen = set()
  for seed in range(20):
    new_ids = renaming.permutation(np.random.default_rng(seed))
    assert sorted(new_ids) == list(range(corpus.vocab_size))
    for group in renaming.groups:
      assert sorted(new_ids[group]) == sorted(group)
    named = np.concatenate(renaming.groups)
    others = np.setdiff1d(np.arange(corpus.vocab_size), named)
    assert (new_ids[others] == others).all()
    seen.add(tuple(new_ids[named]))
  # Either pair is exchanged or not.
  assert len(seen) == 4


def test_a_corpus_without_names_is_refused(tmp_path):
  with pytest.raises(ValueError, match=r"no word .* a name.*RENAMED_SHARE = 0"):
    renaming_of(_corpus(tmp_path, ["we met.", "the carol we met."]))
