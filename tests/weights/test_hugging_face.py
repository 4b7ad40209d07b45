"""Directories of Hugging Face: which tensor becomes which parameter."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from realm_jax.weights.config import read_vocabulary
from realm_jax.weights.directory import open_safetensors
from tests.weights import hf_files as files
from tests.weights.imported import read

pytestmark = pytest.mark.slow


def _assert_same(one, other):
  assert one.keys() == other.keys()
  for path, array in one.items():
    np.testing.assert_array_equal(array, other[path], err_msg=path)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_tensor_is_read_as_it_is_stored_and_in_slices(tmp_path, dtype):
  rng = np.random.default_rng(2)
  stored = {
    "block_emb": rng.standard_normal((30, 8)).astype(dtype),
    "scalar": np.array(3, np.int64),
  }
  safetensors.numpy.save_file(stored, tmp_path / "a")
  found = open_safetensors(tmp_path / "a")
  assert isinstance(found["block_emb"].base, np.memmap)
  assert found["block_emb"].dtype == dtype
  _assert_same(found, stored)
  vectors = found["block_emb"]
  np.testing.assert_array_equal(vectors[25:99], stored["block_emb"][25:])


# --- BERT -----------------------------------------------------------------


@pytest.mark.parametrize(
  ("prefix", "kind"),
  [
    ("", "bert"),
    ("0.auto_model.", "bert"),
    ("question_encoder.bert_model.", "dpr"),
  ],
)
def test_a_prefix_of_the_names_is_found(tmp_path, prefix, kind):
  weights = files.tensors(prefix=prefix)
  files.write(tmp_path, weights, model_type=kind)
  params = read("hf_bert", tmp_path, parts=["retriever"]).params
  path = "retriever/tower/encoder/layer_1/attention/output/kernel"
  name = f"{prefix}encoder.layer.1.attention.output.dense.weight"
  np.testing.assert_array_equal(params[path], weights[name].T)
  assert len(params) == len(weights)


def test_the_old_names_of_layer_norms_are_known(tmp_path):
  weights = files.tensors()
  files.write(tmp_path / "new", weights)
  old = {
    name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
      "LayerNorm.bias", "LayerNorm.beta"
    ): array
    for name, array in weights.items()
  }
  files.write(tmp_path / "old", old)
  new = read("hf_bert", tmp_path / "new").params
  _assert_same(read("hf_bert", tmp_path / "old").params, new)


def test_a_tied_decoder_is_a_copy_of_the_words(tmp_path):
  weights = files.tensors(prefix="bert.", head=True)
  words = weights["bert.embeddings.word_embeddings.weight"]
  weights["cls.predictions.decoder.weight"] = words.copy()
  weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
  weights["cls.seq_relationship.weight"] = np.zeros((2, 8), np.float32)
  files.write(tmp_path, weights)
  found = read("hf_bert", tmp_path)
  unused = found.part_of_report("unused")
  assert "cls.seq_relationship.weight [2, 8]: a next-sentence head" in unused
  for copy, original in (
    ("decoder.weight [109, 8]", "bert.embeddings.word_embeddings.weight"),
    ("decoder.bias [109]", "cls.predictions.bias"),
  ):
    assert f"cls.predictions.{copy}: the same as {original}" in unused
  fresh = found.part_of_report("parameters of random values")
  assert "reader/span_head/projection/kernel [8, 512]" in fresh
  assert "reader/masked_lm_head" not in fresh
  # The bias alone may stand under its other name.
  del weights["cls.predictions.bias"]
  files.write(tmp_path, weights)
  _assert_same(read("hf_bert", tmp_path).params, found.params)
  # A retriever has no head, so nothing of it is looked at.
  weights["cls.predictions.decoder.weight"] *= 2
  files.write(tmp_path, weights)
  read("hf_bert", tmp_path, parts=["retriever"])


def test_two_towers_start_from_one_directory_or_from_two(tmp_path):
  one = files.write(tmp_path / "one", files.tensors(head=True))
  two = files.write(tmp_path / "two", files.tensors(prefix="bert.", seed=1))
  same = read("hf_bert", one, separate_towers=True).params
  dpr = read("hf_bert", one, block_input=two).params
  for path, array in read("hf_bert", one).params.items():
    for params in (same, dpr):
      query = path.replace("/tower/", "/query_tower/")
      np.testing.assert_array_equal(params[query], array)
  for path, array in read("hf_bert", two, parts=["retriever"]).params.items():
    block = path.replace("/tower/", "/block_tower/")
    np.testing.assert_array_equal(dpr[block], array)
    other = block.replace("block", "query")
    np.testing.assert_array_equal(same[block], same[other])


def test_numbers_of_the_configuration_are_kept(tmp_path):
  settings = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}
  files.write(tmp_path, files.tensors(), **settings)
  retriever, reader, _ = read("hf_bert", tmp_path).plan.model
  assert retriever.bert.activation == "gelu_tanh"
  assert retriever.bert.layer_norm_eps == 1e-5
  lowest = float(np.finfo(np.float32).min)
  assert retriever.bert.attention_mask_value == lowest
  assert reader.bert == retriever.bert
  assert reader.joint_length == files.POSITIONS


def test_one_of_several_encoders_is_chosen(tmp_path):
  weights = files.tensors(prefix="query.")
  alone = files.write(tmp_path / "alone", weights)
  weights = weights | files.tensors(prefix="block.", seed=1)
  files.write(tmp_path / "two", weights)
  choice = {"tensor_prefix": "query.", "ignore": [r"block\..*"]}
  found = read("hf_bert", tmp_path / "two", **choice)
  _assert_same(found.params, read("hf_bert", alone).params)


def test_a_projection_is_added_to_both_towers_alike(tmp_path):
  files.write(tmp_path, files.tensors())
  options = {"projection_size": 5, "separate_towers": True, "seed": 3}
  params = read("hf_bert", tmp_path, **options).params
  kernel = params["retriever/query_tower/projection/kernel"]
  assert kernel.shape == (8, 5)
  assert kernel.any()
  other = params["retriever/block_tower/projection/kernel"]
  np.testing.assert_array_equal(kernel, other)


def test_the_vocabulary_may_come_from_tokenizer_json(tmp_path):
  pieces = files.pieces()
  # In another order than that of the ids.
  vocab = {piece: i for i, piece in reversed([*enumerate(pieces)])}
  files.write_json(
    tmp_path / "tokenizer.json",
    {
      "normalizer": {"type": "BertNormalizer", "lowercase": True},
      "added_tokens": [{"id": 0, "content": "[PAD]"}],
      "model": {"type": "WordPiece", "vocab": vocab},
    },
  )
  assert read_vocabulary(tmp_path).pieces == tuple(pieces)


# --- REALM ----------------------------------------------------------------


def _assert_tower(params, tower, weights, prefix=""):
  for ours, theirs in (
    ("encoder/word_embeddings", "realm.embeddings.word_embeddings.weight"),
    ("pooler/kernel", "realm.pooler.dense.weight"),
    ("projection/kernel", "cls.dense.weight"),
    ("projection_norm/scale", "cls.LayerNorm.weight"),
  ):
    wanted = weights[prefix + theirs]
    wanted = wanted.T if ours.endswith("kernel") else wanted
    found = params[f"retriever/{tower}/{ours}"]
    np.testing.assert_array_equal(found, wanted, err_msg=ours)


def test_an_embedder_becomes_a_retriever(tmp_path):
  weights = files.embedder()
  files.write_realm(tmp_path, weights, "RealmEmbedder")
  found = read("hf_realm", tmp_path)
  assert found.plan.parts == ["retriever"]
  _assert_tower(found.params, "tower", weights)
  retriever = found.plan.model.retriever
  assert (retriever.pooling, retriever.projection_size) == ("pooler", 4)
  assert retriever.projection_norm_eps == retriever.bert.layer_norm_eps
  assert retriever.bert.activation == "gelu_tanh"
  assert "unused tensors of the input: 6" in found.report
  assert "parameters of random values: none" in found.report


def test_a_scorer_shares_its_embedder_or_has_two(tmp_path):
  one = files.embedder("embedder.")
  twin = {
    name.replace("embedder.", "query_embedder.", 1): array
    for name, array in one.items()
  }
  other = files.embedder("query_embedder.", seed=5)
  # In a file, a shared embedder stands once, or under both its names.
  for folder, weights in (("once", one), ("twice", one | twin)):
    files.write_realm(tmp_path / folder, weights, "RealmScorer")
    found = read("hf_realm", tmp_path / folder)
    _assert_tower(found.params, "tower", one, "embedder.")
  # Every tensor is accounted for, the second of each pair too.
  unused = found.part_of_report("unused")
  assert "query_embedder.cls.dense.weight [4, 8]" in unused
  files.write_realm(tmp_path / "two", one | other, "RealmScorer")
  params = read("hf_realm", tmp_path / "two").params
  _assert_tower(params, "block_tower", one, "embedder.")
  _assert_tower(params, "query_tower", other, "query_embedder.")


def test_a_knowledge_augmented_encoder_has_a_tied_decoder(tmp_path):
  weights = files.encoder()
  files.write_realm(tmp_path / "absent", weights, "RealmKnowledgeAugEncoder")
  words = weights["realm.embeddings.word_embeddings.weight"]
  weights["cls.predictions.decoder.weight"] = words.copy()
  files.write_realm(tmp_path / "tied", weights, "RealmKnowledgeAugEncoder")
  absent, tied = (
    read("hf_realm", tmp_path / name) for name in ("absent", "tied")
  )
  _assert_same(absent.params, tied.params)
  np.testing.assert_array_equal(
    tied.params["reader/masked_lm_head/bias"], weights["cls.predictions.bias"]
  )
  fresh = tied.part_of_report("parameters of random values")
  assert "reader/span_head/score/kernel [6, 1]" in fresh
  assert "realm.pooler.dense.weight [8, 8]" in tied.part_of_report("unused")


def test_a_reader_has_its_span_head(tmp_path):
  weights = files.reader()
  files.write_realm(tmp_path, weights, "RealmReader")
  found = read("hf_realm", tmp_path)
  for ours, theirs in (
    ("projection/kernel", "dense_intermediate"),
    ("score/kernel", "dense_output"),
    ("norm/scale", "layer_normalization"),
  ):
    np.testing.assert_array_equal(
      found.params[f"reader/span_head/{ours}"],
      weights[f"qa_outputs.{theirs}.weight"].T,
    )
  reader = found.plan.model.reader
  assert (reader.span_size, reader.max_answer_width) == (files.SPAN, 3)
  assert (reader.span_norm_eps, reader.joint_length) == (1e-3, 48)
  assert "cls.predictions.decoder.weight" in found.part_of_report("unused")
  assert "parameters of random values: none" in found.report


def test_open_qa_gives_both_parts(tmp_path):
  weights = files.embedder("embedder.") | files.reader("reader.")
  weights["block_emb"] = np.ones((26, files.PROJECTED), np.float32)
  files.write_realm(tmp_path, weights, "RealmForOpenQA")
  found = read("hf_realm", tmp_path)
  _assert_tower(found.params, "tower", weights, "embedder.")
  np.testing.assert_array_equal(
    found.params["reader/encoder/word_embeddings"],
    weights["reader.realm.embeddings.word_embeddings.weight"],
  )
  assert found.plan.block_vectors.shape == (26, 4)
  half = read("hf_realm", tmp_path, parts=["reader"])
  assert "embedder.cls.dense.weight [4, 8]" in half.part_of_report("unused")
