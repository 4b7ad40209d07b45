"""Directories of Hugging Face: which tensor becomes which parameter.

Vectors and losses of imported models are compared in `test_parity.py`, and
exported retrievers with what sentence-transformers makes of them here: see
`sentence_models.py`.
"""

import re

import numpy as np
import pytest

from harness.agreement import imported_model
from realm_jax.storage.json_files import write_json
from realm_jax.text.vocabulary import VocabularyError
from realm_jax.text.vocabulary_files import read_vocabulary
from realm_jax.weights import WeightsError
from tests.weights import models, sentence_models
from tests.weights.models import GOLDEN, read

pytestmark = pytest.mark.slow

_POOLER = models.tensors(GOLDEN / "hf_bert" / "with_pooler")
_MASKED_LM = models.tensors(GOLDEN / "hf_bert" / "masked_lm")


def test_one_of_several_encoders_is_chosen_by_its_prefix(tmp_path):
  weights = {
    name + key: array * factor
    for key, array in _POOLER.items()
    for name, factor in (("question_encoder.bert_model.", 1), ("b.", 2))
  }
  models.copy("hf_bert/with_pooler", tmp_path, weights)
  prefix = "question_encoder.bert_model."
  mapped = read("hf_bert", tmp_path, tensor_prefix=prefix)
  alone = read("hf_bert", GOLDEN / "hf_bert" / "with_pooler")
  models.assert_same_bits(mapped.parameters, alone.parameters)
  unused = models.part_of_report(mapped, "unused")
  assert "b.embeddings.LayerNorm.bias [24]" in unused


def test_a_tied_decoder_is_a_copy_of_the_words(tmp_path):
  weights = dict(_MASKED_LM)
  words = weights["bert.embeddings.word_embeddings.weight"]
  weights["cls.predictions.decoder.weight"] = words.copy()
  weights["cls.seq_relationship.weight"] = np.zeros((2, 8), np.float32)
  mapped = read("hf_bert", models.copy("hf_bert/masked_lm", tmp_path, weights))
  alone = read("hf_bert", GOLDEN / "hf_bert" / "masked_lm")
  models.assert_same_bits(mapped.parameters, alone.parameters)
  unused = models.part_of_report(mapped, "unused")
  assert "cls.seq_relationship.weight [2, 8]: a next-sentence head" in unused
  assert (
    "cls.predictions.decoder.weight [174, 24]: the same as "
    "bert.embeddings.word_embeddings.weight"
  ) in unused
  fresh = models.part_of_report(mapped, "parameters of random values")
  assert "reader/span_head/projection/kernel [24, 512]" in fresh
  assert "reader/masked_lm_head" not in fresh


def test_what_is_named_may_be_left_out_and_initialized(tmp_path):
  name = "encoder.layer.1.output.dense.weight"
  more = {"head.weight": np.ones((4, 5), np.float32)}
  weights = _POOLER | more | {name: np.ones((3, 4), np.float32)}
  models.copy("hf_bert/with_pooler", tmp_path, weights)
  path = "retriever/tower/encoder/layer_1/down/kernel"
  ignore = [r"head\..*", re.escape(name), path]
  mapped = read("hf_bert", tmp_path, parts=["retriever"], ignore=ignore)
  assert f"{name} [3, 4]: allowed" in models.part_of_report(mapped, "unused")
  assert "head.weight [4, 5]: allowed" in models.part_of_report(
    mapped, "unused"
  )
  fresh = models.part_of_report(mapped, "parameters of random values")
  assert f"{path} [48, 24]: allowed" in fresh


def test_the_vocabulary_may_come_from_tokenizer_json(tmp_path):
  pieces = models.vocabulary().pieces
  # In another order than that of the ids.
  vocab = {piece: i for i, piece in reversed([*enumerate(pieces)])}
  write_json(
    tmp_path / "tokenizer.json",
    {
      "normalizer": {"type": "BertNormalizer", "lowercase": True},
      "added_tokens": [{"id": 0, "content": "[PAD]"}],
      "model": {"type": "WordPiece", "vocab": vocab},
    },
  )
  assert read_vocabulary(tmp_path).pieces == pieces
  other = {"model": {"type": "Unigram", "vocab": {}}}
  write_json(tmp_path / "tokenizer.json", other)
  with pytest.raises(VocabularyError, match="Unigram"):
    read_vocabulary(tmp_path)


@pytest.mark.parametrize(
  ("changes", "word"),
  [
    ({"model_type": "roberta"}, "roberta"),
    ({"num_hidden_layers": 10**9}, "from 1 to 1000"),
    ({"intermediate_size": 16}, r"\[48, 24\], where .* wants \[16, 24\]"),
    ({"weights": _POOLER | {"head.weight": np.ones(4)}}, "--ignore"),
    (
      {"weights": {p + n: t for n, t in _POOLER.items() for p in ("a.", "b.")}},
      "'a.', 'b.'",
    ),
  ],
)
def test_a_model_is_refused(tmp_path, changes, word):
  models.copy("hf_bert/with_pooler", tmp_path, **changes)
  with pytest.raises(WeightsError, match=word):
    read("hf_bert", tmp_path)


def test_other_vocabularies_and_damaged_weights_are_refused(tmp_path):
  folder = models.copy("hf_bert/with_pooler", tmp_path / "in")
  pieces = (folder / "vocab.txt").read_text().splitlines()
  other = [*pieces[:-2], *reversed(pieces[-2:])]
  block_input = models.copy(
    "hf_bert/with_pooler", tmp_path / "other", pieces=other
  )
  with pytest.raises(WeightsError, match="vocabularies"):
    read("hf_bert", folder, block_input=block_input)
  write_json(block_input / "tokenizer_config.json", {"do_lower_case": False})
  assert read("hf_bert", block_input).model.vocabulary.cased
  weights = folder / "model.safetensors"
  weights.write_bytes(weights.read_bytes()[:-5])
  with pytest.raises(WeightsError, match="copy it again"):
    read("hf_bert", folder)


# --- REALM --------------------------------------------------------------------


@pytest.mark.parametrize(
  ("name", "parts", "unused", "fresh"),
  [
    ("embedder", ["retriever"], "cls.predictions.bias [174]", ""),
    ("two_towers", ["retriever"], "query_embedder.cls.predictions.bias", ""),
    ("encoder", ["reader"], "realm.pooler.dense.weight", "span_head/score"),
    ("reader", ["reader"], "cls.predictions.decoder.weight", ""),
    ("open_qa", ["retriever", "reader"], "block_emb", ""),
  ],
)
def test_each_class_gives_its_parts_and_no_tensor_is_forgotten(
  name, parts, unused, fresh
):
  mapped = read("hf_realm", GOLDEN / "hf_realm" / name)
  assert mapped.parts == parts
  assert unused in models.part_of_report(mapped, "unused")
  random = models.part_of_report(mapped, "parameters of random values")
  assert fresh in random
  assert bool(random) == bool(fresh)
  retriever, reader, _ = mapped.model
  assert (retriever.pooling, retriever.projection_size) == ("pooler", 16)
  assert retriever.bert.activation == "gelu_tanh"
  assert (reader.span_size, reader.span_norm_eps) == (16, 1e-3)


def test_released_vectors_come_with_the_tower_that_embedded_them():
  folder = GOLDEN / "hf_realm"
  mapped = read("hf_realm", folder / "embedder", block_input=folder / "open_qa")
  vectors = read("hf_realm", folder / "open_qa").source.block_vectors
  np.testing.assert_array_equal(mapped.source.block_vectors, vectors)
  assert "block.block_emb" in models.part_of_report(mapped, "unused")


# --- sentence-transformers ----------------------------------------------------


def test_modules_are_followed_but_flags_go_before_them(tmp_path):
  models.copy("hf_bert/with_pooler", tmp_path)
  models.write_sentence_modules(tmp_path)
  write_json(
    tmp_path / "config_sentence_transformers.json",
    {"prompts": {"query": "york was ", "passage": "the bridge "}},
  )
  mapped = read("hf_bert", tmp_path, score_scale=20.0, block_prefix="bridge")
  retriever, _, words = mapped.model
  assert (retriever.pooling, retriever.normalize) == ("mean", True)
  assert retriever.score_scale == 20.0
  # Title and body are one text, of one type.
  assert not retriever.title_separator
  assert not retriever.token_types
  assert retriever.query_prefix == tuple(words.encode("york was"))
  assert retriever.block_prefix == tuple(words.encode("bridge"))
  choice = {"pooling": "cls", "normalize": False, "token_types": True}
  retriever = read("hf_bert", tmp_path, **choice).model.retriever
  assert {name: getattr(retriever, name) for name in choice} == choice


@pytest.mark.parametrize(
  ("name", "block_name"),
  [("query_tower", "block_tower"), ("mean_of_one_text", None)],
)
def test_the_library_reads_exports_as_this_project_does(
  tmp_path, name, block_name
):
  golden = GOLDEN / "sentence_transformers"
  # What the library has read is what is exported today.
  for each in {name, block_name or name}:
    sentence_models.export(each, tmp_path / each)
    written, expected = (
      {p.relative_to(d): p.read_bytes() for p in d.glob(f"{each}/**/*.*")}
      for d in (tmp_path, golden)
    )
    assert written == {
      path: data for path, data in expected.items() if path.suffix != ".npz"
    }
  block_dir = golden / (block_name or name)
  block_input = block_dir if block_name else None
  mapped = read(
    "hf_bert", golden / name, block_input=block_input, parts=["retriever"]
  )
  models.assert_same_bits(mapped.parameters, sentence_models.parameters(name))
  model = imported_model.load(mapped)
  ours = sentence_models.RETRIEVERS[name]
  for field in ("pooling", "normalize", "score_scale", "query_prefix"):
    assert getattr(model.retriever, field) == getattr(ours, field), field
  for file, embed, prepare in (
    (golden / name / "query.npz", model.query_vectors, "query_input"),
    (block_dir / "block.npz", model.block_vectors, "block_input"),
  ):
    with np.load(file, allow_pickle=False) as arrays:
      theirs = dict(arrays)
    ids = sentence_models.token_ids(file.stem)
    tokens = theirs["token_ids"]
    prepared = np.asarray(getattr(model.retriever, prepare)(ids))
    np.testing.assert_array_equal(prepared[:, : tokens.shape[1]], tokens)
    assert not prepared[:, tokens.shape[1] :].any()
    np.testing.assert_allclose(embed(ids), theirs["vectors"], atol=1e-5)
