"""A released index becomes a corpus and a generation, embedding nothing."""

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.released_index import (
  BlockOptions,
  ReleasedIndex,
  import_index,
)
from realm_jax.conversion.parameters import BoundModel
from realm_jax.conversion.pickles import read_byte_strings
from realm_jax.corpus.store import Corpus
from realm_jax.generations.follow.loading import load_newest
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.indexes.protocol import QueryBatch
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary

pytestmark = pytest.mark.slow

_PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] ada velt was born in the .".split()
_NUM_BLOCKS = 120
_DIM = 8
_RETRIEVER = Retriever(
  BertConfig(
    vocab_size=len(_PIECES),
    separator_id=3,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    max_positions=32,
  ),
  projection_size=_DIM,
  shared_towers=False,
)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> WordpieceVocabulary:
  path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
  path.write_text("\n".join(_PIECES))
  return WordpieceVocabulary(path)


@pytest.fixture(scope="module")
def params():
  tokens = jnp.zeros((1, 4), jnp.int32)
  boxed = jax.jit(_RETRIEVER.init)(jax.random.key(0), tokens, tokens)
  return jax.device_get(flax.linen.unbox(boxed["params"]))


def records() -> list[bytes]:
  rng = np.random.default_rng(0)
  words = rng.choice(_PIECES[5:], (_NUM_BLOCKS, 12))
  return [" ".join(row).encode() for row in words[:-1]] + [b""]


def vectors() -> np.ndarray:
  rng = np.random.default_rng(1)
  return rng.standard_normal((_NUM_BLOCKS, _DIM)).astype(np.float32)


def release(tmp_path, texts, values, *, index="exact", titles=None):
  options = BlockOptions(tmp_path / "corpus", index=index)
  return ReleasedIndex(tmp_path / "corpus", options, texts, values, titles)


def run(released, tmp_path, vocabulary, params):
  model = BoundModel(_RETRIEVER, Reader(_RETRIEVER.bert), vocabulary)
  with import_index(released, tmp_path / "model", model, params):
    pass


@pytest.mark.parametrize("index", ["exact", "scann"])
def test_what_was_released_is_found_here(tmp_path, vocabulary, params, index):
  np.save(tmp_path / "block_records.npy", np.array(records(), object))
  # As a checkpoint's file is: mapped, not read.
  np.save(tmp_path / "vectors.npy", vectors())
  mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
  texts = read_byte_strings(tmp_path / "block_records.npy")
  released = release(tmp_path, texts, mapped, index=index)
  run(released, tmp_path, vocabulary, params)
  corpus = Corpus.open(tmp_path / "corpus")
  assert [
    corpus.block(r).body.encode() for r in range(_NUM_BLOCKS)
  ] == records()
  generation = load_newest(tmp_path / "model" / "generations", corpus=corpus)
  assert generation.step == 0
  manifest = generation.manifest
  assert manifest.index_kind == index
  assert set(manifest.recall) == {"8", "100"}
  assert all(0.8 < recall <= 1 for recall in manifest.recall.values())
  rows = np.arange(_NUM_BLOCKS)
  np.testing.assert_array_equal(generation.vectors(rows), vectors())

  # Queries are embedded by the imported tower, and find what numpy finds.
  tokens = np.array([[2, 5, 7, 3], [2, 6, 8, 3]], np.int32)
  assert set(generation.query_params) == {"query_tower"}
  queries, expected = (
    np.asarray(
      _RETRIEVER.apply(
        {"params": jax.tree.map(jnp.asarray, tree)},
        tokens,
        method="embed_queries",
      )
    )
    for tree in (generation.query_params, params)
  )
  np.testing.assert_array_equal(queries, expected)
  found = generation.index.search(QueryBatch(tokens, queries), 3)
  best = np.argsort(-(expected @ vectors().T), axis=1)[:, :3]
  assert found.rows.tolist() == best.tolist()


def test_vectors_of_another_model_are_refused(tmp_path, vocabulary, params):
  released = release(tmp_path, records(), vectors()[:, :4])
  with pytest.raises(ConversionError, match="retriever of 8 dimensions"):
    run(released, tmp_path, vocabulary, params)
  assert list(tmp_path.iterdir()) == []


def test_a_vector_that_is_not_finite_is_not_published(
  tmp_path, vocabulary, params
):
  (tmp_path / "disk").mkdir()
  (tmp_path / "corpus").symlink_to(tmp_path / "disk")
  broken = vectors()
  broken[77, 3] = np.nan
  with pytest.raises(GenerationError, match="block 77 is not finite"):
    run(release(tmp_path, records(), broken), tmp_path, vocabulary, params)
  assert not list((tmp_path / "model" / "generations").glob("0*"))
  # Nor does its corpus stand in the way of the next attempt.
  assert not (tmp_path / "corpus").exists()
  run(release(tmp_path, records(), vectors()), tmp_path, vocabulary, params)
  assert Corpus.open(tmp_path / "corpus").num_blocks == _NUM_BLOCKS
