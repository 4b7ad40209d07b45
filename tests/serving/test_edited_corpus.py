"""An edited corpus reads as one that was built from the edited text."""

import numpy as np
import pytest

from realm_jax.serving.edited_corpus import EditedBlock, EditedCorpus
from realm_jax.serving.errors import EditError
from tests import tiny_world

_ONE_OF_A_BLOCK = (
  *("document_id", "title", "url", "ordinal", "name", "body"),
  *("token_ids", "title_length", "body_token_ids", "byte_ranges"),
  "sentences",
)


def _edited(corpus, texts):
  return EditedCorpus(
    corpus, {row: EditedBlock(corpus, row, text) for row, text in texts.items()}
  )


def test_it_reads_as_a_corpus_of_the_edited_text(world, edited):
  texts, built = edited
  view = _edited(world.corpus, texts)
  num_blocks = world.corpus.num_blocks
  assert view.num_blocks == built.num_blocks == num_blocks
  for row in range(num_blocks):
    block, other = view.block(row), built.block(row)
    for name in _ONE_OF_A_BLOCK:
      own, wanted = getattr(block, name), getattr(other, name)
      np.testing.assert_array_equal(own, wanted, err_msg=f"{name} of {row}")
    limit = len(block.body_token_ids)
    assert block.answer_text(1, limit) == other.answer_text(1, limit)
    if row in texts:
      assert not len(block.salient_spans)
      assert not len(block.salient_span_kinds)
  for name in ("block_ids", "lengths", "content_hashes"):
    own, wanted = getattr(view, name), getattr(built, name)
    np.testing.assert_array_equal(own, wanted, err_msg=name)
  rows = np.array([[3, -1, 0], [7, 27, 3]])
  for length in (8, tiny_world.BLOCK_LENGTH):
    own, wanted = view.gather(rows, length), built.gather(rows, length)
    np.testing.assert_array_equal(own, wanted)
  flat = np.array([4, 1, 0, 3, 4])
  assert view.bodies_utf8(flat) == built.bodies_utf8(flat)
  for own, wanted in zip(
    view.body_tokens_flat(flat), built.body_tokens_flat(flat), strict=True
  ):
    np.testing.assert_array_equal(own, wanted)
  own, wanted = (
    corpus.random_sentences(flat, 12, np.random.default_rng(0))
    for corpus in (view, built)
  )
  np.testing.assert_array_equal(own, wanted)


def test_the_corpus_itself_stays_as_it_is(world):
  corpus = world.corpus
  view = _edited(corpus, {0: "Ada built."})
  assert view.block(0).body == "Ada built." and "Velt" in corpus.block(0).body
  assert view.lengths[0] < corpus.lengths[0]
  # The same text makes the same block.
  same = _edited(corpus, {0: corpus.block(0).body})
  np.testing.assert_array_equal(same.lengths, corpus.lengths)
  np.testing.assert_array_equal(same.content_hashes, corpus.content_hashes)


def test_a_text_that_does_not_fit_is_refused(world):
  # 40, less three special tokens and the two of the title.
  EditedBlock(world.corpus, 0, "Velt " * 35)
  with pytest.raises(
    EditError, match=r"36 wordpieces, and .* p0:0 has room for 35"
  ):
    EditedBlock(world.corpus, 0, "Velt " * 36)
  with pytest.raises(EditError, match="no words"):
    EditedBlock(world.corpus, 0, " \n ")
