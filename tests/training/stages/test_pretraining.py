"""Pre-training's candidates, and the corpora that they and sentences are of."""

import functools

import jax
import numpy as np
import optax
import pytest

from realm_jax.errors import RealmError
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.training.stages.inverse_cloze import InverseCloze
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.stages.reading import Reading
from realm_jax.training.stages.stage import StageContext
from realm_jax.training.stages.text_to_text import TextToText
from tests.training import tiny

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] . alps rhine nile snow ships flow"
SENTINELS = "<extra_id_0> <extra_id_1>"
LENGTH = 8
# The source's text stands twice in the corpus that is searched.
SEARCHED = ("alps snow", "rhine ships", "nile flow", "rhine ships")
# Numbers as ids, which mean other documents in the other corpus.
READ = ("nile flow", "rhine ships")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
  folder = tmp_path_factory.mktemp("corpora")
  return [
    tiny.corpus_of(
      *(folder, texts),
      pieces=f"{PIECES} {SENTINELS}",
      block_length=LENGTH,
      name=name,
    )
    for name, texts in (("searched", SEARCHED), ("read", READ))
  ]


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


def _retrieved(rows):
  rows = np.array([rows], np.int32)
  return SearchResult(rows, np.zeros(rows.shape, np.float32))


_READS_SOURCE = {"drop_source": False}
_READS_GOLD = {"drop_source": False, "read_gold": True}


@pytest.mark.parametrize(
  ("settings", "rows", "bodies"),
  [
    # The source of the sentence, `rhine ships`, and its copy are rows 1 and 3.
    ({}, [1, 2, 3, 0], ["", "nile flow", "alps snow"]),
    # The null block takes the place of copies that are not spare.
    ({}, [1, 2, 3], ["", "nile flow", ""]),
    (_READS_SOURCE, [1, 2, 3], ["", "rhine ships", "nile flow"]),
    # Those with the masked word, `rhine`, are read first.
    (_READS_GOLD, [2, 0, 3, 1], ["", "rhine ships", "rhine ships"]),
  ],
)
def test_which_blocks_are_candidates(corpora, settings, rows, bodies):
  searched, read = corpora
  stage = Pretraining(num_candidates=3, **settings)
  context = StageContext(tiny.components(), searched, None, LENGTH, read)
  made, _ = stage.features(_batch(read, 1), _retrieved(rows), context)
  found = _bodies(searched.vocabulary, made.candidates.tokens[0])
  assert found == bodies


def test_hard_negatives_are_not_the_source(corpora):
  searched, read = corpora
  batch = _batch(read, 1)
  batch.arrays["removed"] = np.ones(1, bool)
  batch.arrays["block"] = np.full((1, LENGTH), 7, np.int32)
  made, _ = InverseCloze(num_hard_negatives=2).features(
    batch,
    _retrieved([1, 2, 3]),
    StageContext(tiny.components(), searched, None, LENGTH, read),
  )
  np.testing.assert_array_equal(made.blocks[:, 0], batch.arrays["block"])
  # The null block takes the place of copies that are not spare.
  bodies = _bodies(searched.vocabulary, made.blocks[0, 1:])
  assert bodies == ["nile flow", ""]


@functools.partial(jax.jit, static_argnames=("objective", "freeze_reader"))
def _run(params, batch, key=None, **settings):
  """The gradient's norm by component, and the means; the reader has the key."""

  def loss(params):
    found = tiny.weighted(params, batch, reader_key=key, **settings)
    return found.loss.mean, found.means()

  gradient, means = jax.grad(loss, has_aux=True)(params)
  return {n: optax.tree.norm(part) for n, part in gradient.items()}, means


@pytest.mark.slow
def test_a_target_has_no_dropout_and_a_frozen_reader_does_not_learn():
  batch = tiny.batch_with_answers()

  params = tiny.parameters("pretraining")
  key, settings = jax.random.key(0), {"objective": "perplexity"}
  slopes, one = _run(params, batch, key, **settings)
  _, other = _run(params, batch, jax.random.key(1), **settings)
  assert one["retriever_loss"] == other["retriever_loss"] > 0
  assert one["reader_loss"] != other["reader_loss"]
  assert slopes["reader"] > 0
  settings["freeze_reader"] = True
  slopes, frozen = _run(params, batch, key, **settings)
  assert slopes["reader"] == 0
  assert frozen["retriever_loss"] == pytest.approx(one["retriever_loss"])


def test_a_sentence_is_read_beside_its_own_block(corpora):
  searched, read = corpora
  context = StageContext(tiny.components(), searched, None, LENGTH, read)
  for row, text in enumerate(READ):
    made, _ = Reading().features(_batch(read, row), None, context)
    assert _bodies(searched.vocabulary, made.blocks[:, 0]) == [text]
  # Equal document ids of two corpora are different blocks.
  assert not set(searched.block_ids) & set(read.block_ids)


@pytest.mark.parametrize(
  ("settings", "bodies"),
  [
    ({"read_source": True}, ["rhine ships"]),
    ({"read_gold": True}, ["rhine ships", "rhine ships"]),
    ({}, ["nile flow", "alps snow"]),
  ],
)
def test_what_a_reader_that_writes_learns_to_read(corpora, settings, bodies):
  searched, read = corpora
  stage = TextToText(num_read=2, **settings)
  components = tiny.writing_components()
  context = StageContext(components, searched, None, LENGTH, read)
  found = None if "read_source" in settings else _retrieved([2, 0, 3, 1])
  made, _ = stage.features(_batch(read, 1), found, context)
  words = searched.vocabulary
  assert _bodies(words, made.candidates.tokens[0]) == bodies
  # It reads these and writes the masked word.
  for ids, body in zip(made.candidates.passages[0], bodies, strict=True):
    assert body in words.decode(ids.tolist())
  assert "rhine" in words.decode(made.targets[0].tolist())


def test_a_vocabulary_without_sentinels_is_refused(tmp_path):
  plain = tiny.corpus_of(tmp_path, READ, pieces=PIECES, block_length=LENGTH)
  context = StageContext(tiny.writing_components(), plain, None, LENGTH)
  stage = TextToText(num_read=1, read_source=True)
  with pytest.raises(RealmError, match="the vocabulary has no sentinels"):
    stage.features(_batch(plain, 1), None, context)
