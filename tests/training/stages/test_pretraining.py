"""Pre-training's candidates, and the corpora that they and sentences are of."""

import json

import numpy as np
import pytest

from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.training.stages import masked_words
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.stages.reading import Reading
from realm_jax.training.stages.stage import StageContext

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] . alps rhine nile snow ships flow"
LENGTH = 8
# The source's text stands twice in the corpus that is searched.
SEARCHED = ("alps snow", "rhine ships", "nile flow", "rhine ships")
# Numbers as ids, which mean other documents in the other corpus.
READ = ("nile flow", "rhine ships")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
  folder = tmp_path_factory.mktemp("corpora")
  (folder / "vocab.txt").write_text("\n".join(PIECES.split()))
  opened = []
  for name, texts in (("searched", SEARCHED), ("read", READ)):
    lines = [
      json.dumps({"id": number, "title": "", "text": text})
      for number, text in enumerate(texts)
    ]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    build_corpus(
      [str(folder / f"{name}.jsonl")],
      folder / name,
      vocab=str(folder / "vocab.txt"),
      block_length=LENGTH,
    )
    opened.append(Corpus.open(folder / name))
  return opened


def _context(searched, read):
  return StageContext(searched, None, LENGTH, read)


def _batch(read, row):
  """A masked sentence of one block."""
  words = read.vocabulary
  query = [words.cls_id, words.mask_id, words.sep_id]
  arrays = {
    "query": np.array([query], np.int32),
    "source_id": read.block_ids[[row]],
    "source_hash": read.content_hashes[[row]],
    "mask_positions": np.array([[1]], np.int32),
    "mask_targets": read.block(row).body_token_ids[None, :1],
    "mask_weights": np.ones((1, 1), np.float32),
  }
  return Batch(arrays, {}, np.arange(1), np.arange(1) + 1)


def _bodies(words, blocks):
  """The texts of blocks without a title."""
  return [words.decode([i for i in row.tolist() if i > 4]) for row in blocks]


def test_copies_of_the_source_are_no_candidates(corpora):
  searched, read = corpora
  stage = Pretraining(num_candidates=3, num_spare=1)
  assert stage.num_searched(4) == 4
  rows = np.array([[1, 2, 3, 0]], np.int32)
  retrieved = SearchResult(rows, np.zeros(rows.shape, np.float32))
  made, _ = stage.assemble(_batch(read, 1), retrieved, _context(*corpora))
  found = _bodies(searched.vocabulary, made.candidates.tokens[0])
  assert found == ["", "nile flow", "alps snow"]


def test_the_null_block_takes_the_place_of_copies_that_are_not_spare(corpora):
  searched, read = corpora
  stage = Pretraining(num_candidates=3, num_spare=0)
  rows = np.array([[1, 2, 3]], np.int32)
  retrieved = SearchResult(rows, np.zeros(rows.shape, np.float32))
  made, _ = stage.assemble(_batch(read, 1), retrieved, _context(*corpora))
  found = _bodies(searched.vocabulary, made.candidates.tokens[0])
  assert found == ["", "nile flow", ""]


@pytest.mark.parametrize(
  "settings, bodies",
  [
    # The source and its copy stand in rows 1 and 3.
    ({"null_block": False}, ["nile flow", "alps snow"]),
    ({"drop_source": False}, ["", "rhine ships"]),
    ({"null_block": False, "drop_source": False}, ["rhine ships", "nile flow"]),
  ],
)
def test_without_the_null_block_or_with_the_source(corpora, settings, bodies):
  searched, read = corpora
  stage = Pretraining(num_candidates=2, num_spare=1, **settings)
  rows = np.array([[1, 2, 3, 0]], np.int32)
  retrieved = SearchResult(rows, np.zeros(rows.shape, np.float32))
  made, _ = stage.assemble(_batch(read, 1), retrieved, _context(*corpora))
  assert _bodies(searched.vocabulary, made.candidates.tokens[0]) == bodies
  # The masked word is `rhine`.
  found = masked_words.occurrences(made.masks, made.candidates.tokens).any()
  assert found == ("rhine ships" in bodies)
  assert stage.null_block == settings.get("null_block", True)


@pytest.mark.parametrize(
  "rows, bodies",
  [
    ([2, 0, 3, 1], ["", "rhine ships", "rhine ships"]),
    ([2, 0, 3], ["", "rhine ships", "nile flow"]),
    ([0, 2], ["", "alps snow", "nile flow"]),
  ],
)
def test_blocks_with_the_masked_words_are_read_first(corpora, rows, bodies):
  searched, read = corpora
  stage = Pretraining(num_candidates=3, drop_source=False, read_gold=True)
  retrieved = SearchResult(
    np.array([rows], np.int32), np.zeros((1, len(rows)), np.float32)
  )
  made, _ = stage.assemble(_batch(read, 1), retrieved, _context(*corpora))
  assert _bodies(searched.vocabulary, made.candidates.tokens[0]) == bodies


def test_what_is_searched_for_is_what_is_kept_or_dropped():
  # Candidates that are retrieved, the source, and spare blocks for its copies.
  for null, drop, needed in (
    (True, True, 7 + 1),
    (False, True, 8 + 1),
    (True, False, 7),
    (False, False, 8),
  ):
    stage = Pretraining(8, num_spare=2, null_block=null, drop_source=drop)
    assert stage.num_searched(100) == needed + 2 * drop
    assert stage.num_searched(needed) == needed
    with pytest.raises(ValueError, match=f"needs {needed} blocks.*NUM_CANDID"):
      stage.num_searched(needed - 1)


def test_a_sentence_is_read_beside_its_own_block(corpora):
  searched, read = corpora
  none = np.zeros((1, 0), np.int32)
  nothing = SearchResult(none, none.astype(np.float32))
  for row, text in enumerate(READ):
    made, _ = Reading().assemble(_batch(read, row), nothing, _context(*corpora))
    assert _bodies(searched.vocabulary, made.blocks[:, 0]) == [text]
  # Equal document ids of two corpora are different blocks.
  assert not set(searched.block_ids) & set(read.block_ids)
