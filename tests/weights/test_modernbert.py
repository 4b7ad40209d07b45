"""Equality with transformers' ModernBERT: see `tests/golden/make_modernbert.py`."""

import json

import jax
import numpy as np
import pytest

from realm_jax.models import sequences
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.text.byte_pairs import BytePairVocabulary
from realm_jax.text.vocabulary_files import read_vocabulary
from realm_jax.weights.mapped_weights import MappedWeights, map_weights, nested
from realm_jax.weights.registry import ImportConfig
from tests.weights.models import GOLDEN

_FOLDER = GOLDEN / "modernbert"


def _mapped(name: str) -> MappedWeights:
  return map_weights(ImportConfig("hf_bert", _FOLDER / name))


@pytest.fixture(scope="module")
def words() -> BytePairVocabulary:
  found = read_vocabulary(_FOLDER / "sentence")
  assert isinstance(found, BytePairVocabulary)
  return found


def test_hidden_states_and_masked_words(words: BytePairVocabulary) -> None:
  mapped = _mapped("masked_lm")
  expected = np.load(_FOLDER / "masked_lm" / "expected.npz")
  is_token = expected["is_token"] == 1
  ids = np.where(is_token, words.from_theirs(expected["token_ids"]), 0)
  params = nested(mapped.parameters)["reader"]
  reader = mapped.model.reader

  def read(module: BertReader) -> tuple[jax.Array, jax.Array]:
    hidden = module.encoder(sequences.padded(ids))
    scored = hidden[:, : expected["logits"].shape[1]]
    table = module.encoder.word_embeddings
    return hidden, module.masked_lm_head(scored, table)

  hidden, logits = reader.apply({"params": params}, method=read)
  np.testing.assert_allclose(
    hidden[is_token], expected["hidden"][is_token], atol=2e-5
  )
  ours = words.from_theirs(np.arange(words.size))
  np.testing.assert_allclose(
    logits, expected["logits"][..., ours], atol=5e-5, rtol=1e-5
  )


def test_a_sentence_transformer_that_pools_the_last_token(
  words: BytePairVocabulary,
) -> None:
  mapped = _mapped("sentence")
  retriever = mapped.model.retriever
  assert isinstance(retriever, BertRetriever)
  params = nested(mapped.parameters)["retriever"]
  expected = json.loads((_FOLDER / "sentence" / "expected.json").read_text())
  for name, method in (("query", "embed_queries"), ("document", "embed_blocks")):
    own = [one for one in expected if one["prompt"] == name]
    ids = np.zeros((len(own), 60), np.int32)
    for row, one in zip(ids, own, strict=True):
      text = words.encode(one["text"])
      filled = [words.cls_id, *text, words.sep_id]
      if name == "document":
        # It has no title.
        filled.insert(1, words.sep_id)
      row[: len(filled)] = filled
    vectors = retriever.apply({"params": params}, ids, method=method)
    wanted = [one["vector"] for one in own]
    np.testing.assert_allclose(vectors, wanted, atol=2e-6)
    query = retriever.query_input if name == "query" else retriever.block_input
    for read, one in zip(query(ids), own, strict=True):
      theirs = words.from_theirs(np.array(one["token_ids"]))
      np.testing.assert_array_equal(read[read != 0], theirs)


def test_packed_sequences_have_the_vectors_of_padded_ones() -> None:
  pass
