"""Equality with transformers: see `tests/golden/make_modernbert.py`."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness.agreement.t5 import packed
from realm_jax.models.sequences import padded
from realm_jax.storage.json_files import write_json
from realm_jax.text.byte_pairs import BytePairVocabulary
from realm_jax.text.vocabulary import VocabularyError
from realm_jax.text.vocabulary_files import read_vocabulary
from realm_jax.weights import WeightsError, exporting
from realm_jax.weights.mapped_weights import nested
from tests.weights import models

_FOLDER = models.GOLDEN / "modernbert"


@pytest.fixture(scope="module")
def words() -> BytePairVocabulary:
  vocabulary = read_vocabulary(_FOLDER / "sentence")
  assert isinstance(vocabulary, BytePairVocabulary)
  return vocabulary


@pytest.fixture(scope="module")
def of_class(words):
  """The golden class, its tokens as this project numbers them, and values."""
  mapped = models.read("hf_bert", _FOLDER / "masked_lm")
  expected = np.load(_FOLDER / "masked_lm" / "expected.npz")
  is_token = expected["is_token"] == 1
  ids = np.where(is_token, words.from_theirs(expected["token_ids"]), 0)
  params = nested(mapped.parameters)["reader"]
  return mapped.model.reader, params, ids, expected


def test_hidden_states_and_masked_words(words, of_class):
  reader, params, ids, expected = of_class

  def read(module):
    hidden = module.encoder(padded(ids))
    scored = hidden[:, : expected["logits"].shape[1]]
    table = module.encoder.word_embeddings
    return hidden, module.masked_lm_head(scored, table)

  compute = jax.jit(functools.partial(reader.apply, method=read))
  hidden, logits = map(np.asarray, compute({"params": params}))
  is_token = ids != 0
  np.testing.assert_allclose(
    hidden[is_token], expected["hidden"][is_token], atol=2e-5
  )
  ours = words.from_theirs(np.arange(words.size))
  theirs = expected["logits"][..., ours]
  np.testing.assert_allclose(logits, theirs, atol=5e-5, rtol=1e-5)


def test_bins_hold_what_padding_holds(of_class):
  reader, params, ids, _ = of_class
  config = dataclasses.replace(reader.bert, dropout_rate=0.1)
  encoder = config.encoder(config)

  @functools.partial(jax.jit, static_argnames="drops")
  def first(sequences, *, drops):
    rngs = {"dropout": jax.random.key(1)} if drops else {}
    variables = {"params": params["encoder"]}
    hidden = encoder.apply(variables, sequences, rngs=rngs)
    return hidden.reshape(-1, hidden.shape[-1])[sequences.starts.reshape(-1)]

  bins = packed(ids)
  assert len(bins.token_ids) < len(ids)
  one_a_bin = padded(jnp.asarray(ids), jnp.arange(len(ids), dtype=jnp.uint32))
  for drops in (False, True):
    ours, theirs = (first(x, drops=drops) for x in (bins, one_a_bin))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
  assert np.abs(ours - first(bins, drops=False)).max() > 0.01


def test_a_sentence_transformer_that_pools_the_last_token(words):
  mapped = models.read("hf_bert", _FOLDER / "sentence")
  retriever = mapped.model.retriever
  params = nested(mapped.parameters)["retriever"]
  expected = json.loads((_FOLDER / "sentence" / "expected.json").read_text())
  for prompt, method in (
    ("query", "embed_queries"),
    ("document", "embed_blocks"),
  ):
    rows = [one for one in expected if one["prompt"] == prompt]
    ids = np.zeros((len(rows), 60), np.int32)
    for row, one in zip(ids, rows, strict=True):
      title = [words.sep_id] if prompt == "document" else []
      text = [*title, *words.encode(one["text"]), words.sep_id]
      row[: len(text) + 1] = [words.cls_id, *text]
    embed = jax.jit(functools.partial(retriever.apply, method=method))
    vectors = embed({"params": params}, ids)
    expected_vectors = [one["vector"] for one in rows]
    np.testing.assert_allclose(vectors, expected_vectors, atol=2e-6)
    is_query = prompt == "query"
    read = (retriever.query_input if is_query else retriever.block_input)(ids)
    for row, one in zip(read, rows, strict=True):
      theirs = words.from_theirs(np.array(one["token_ids"]))
      np.testing.assert_array_equal(row[row != 0], theirs)


@pytest.mark.parametrize(
  "name, to", [("masked_lm", "hf_bert"), ("sentence", "sentence_transformers")]
)
def test_an_export_is_what_was_imported(tmp_path, words, name, to):
  run, out = tmp_path / "run", tmp_path / "out"
  models.import_weights("hf_bert", _FOLDER / name, run)
  exporting.export_weights(run, *models.load(run), out, to=to)
  ours, theirs = (models.tensors(folder) for folder in (out, _FOLDER / name))
  # Rows after the last piece are padding, which no text reaches.
  for one in ("model.embeddings.tok_embeddings.weight", "decoder.bias"):
    if one in theirs:
      theirs[one] = theirs[one][: words.size]
  for key, tensor in ours.items():
    np.testing.assert_array_equal(tensor, theirs[key][: len(tensor)])
  assert ours.keys() == theirs.keys() - {"decoder.weight"}
  assert read_vocabulary(out).digest == words.digest
  # The library would give the model what it does not take.
  tokenizer = json.loads((out / "tokenizer_config.json").read_text())
  assert tokenizer["model_input_names"] == ["input_ids", "attention_mask"]


def test_a_number_of_layers_is_bounded(tmp_path):
  config = json.loads((_FOLDER / "masked_lm" / "config.json").read_text())
  write_json(tmp_path / "config.json", config | {"num_hidden_layers": 10**9})
  with pytest.raises(WeightsError, match="from 1 to 1000"):
    models.read("hf_bert", tmp_path)


def test_tokens_have_their_places_in_the_text(words):
  texts = ["Zoë  Çelik\n saw (it) in 北京!  ", "", " the [SEP]"]
  tokens = words.tokenize_with_offsets(texts)
  assert tokens.row_offsets[1] == tokens.row_offsets[2]
  for number, text in enumerate(texts):
    place = slice(*tokens.row_offsets[number : number + 2])
    ids, ranges = tokens.token_ids[place], tokens.byte_ranges[place]
    assert words.decode(ids) == " ".join(text.split())
    assert (np.diff(ranges, axis=1) > 0).all()
    assert (np.diff(ranges, axis=0) >= 0).all()
    places = {i for start, limit in ranges for i in range(start, limit)}
    covered = bytes(text.encode()[i] for i in sorted(places))
    assert covered == b"".join(text.encode().split())
  # A text that spells a special piece has none.
  assert words.sep_id not in tokens.token_ids
  assert words.encode_masked("the [MASK].").count(words.mask_id) == 1
  assert words.encode("the river") == words.encode("the\n\nriver")


def test_other_tokenizers_are_refused(tmp_path):
  file = json.loads((_FOLDER / "sentence" / "tokenizer.json").read_text())
  file["added_tokens"] = [
    one for one in file["added_tokens"] if one["content"] != "[MASK]"
  ]
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(file))
  with pytest.raises(VocabularyError, match=r"no \[MASK\]"):
    read_vocabulary(tmp_path)
  path.write_text(json.dumps({"model": {"type": "BPE"}}))
  with pytest.raises(VocabularyError, match="byte-level"):
    read_vocabulary(path)
