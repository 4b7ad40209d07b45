"""REALM directories: which class gives what, and what is left."""

import json

import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from tests.conversion.hugging_face import realm_files as files
from tests.conversion.imported import import_weights, load

pytestmark = pytest.mark.slow


def _tower_of(weights, prefix=""):
  """The parameters of a tower that the tensors show at a glance."""
  return {
    "words": weights[f"{prefix}realm.embeddings.word_embeddings.weight"],
    "pooler": weights[f"{prefix}realm.pooler.dense.weight"].T,
    "projection": weights[f"{prefix}cls.dense.weight"].T,
    "norm": weights[f"{prefix}cls.LayerNorm.weight"],
  }


def _shown(tower):
  return {
    "words": tower["encoder"]["word_embeddings"],
    "pooler": tower["pooler"]["kernel"],
    "projection": tower["projection"]["kernel"],
    "norm": tower["projection_norm"]["scale"],
  }


def _assert_tower(tower, wanted):
  shown = _shown(tower)
  assert shown.keys() == wanted.keys()
  for name, array in wanted.items():
    np.testing.assert_array_equal(shown[name], array, err_msg=name)


def test_an_embedder_becomes_a_retriever(tmp_path):
  weights = files.embedder()
  report = import_weights(
    "hf_realm",
    files.write(tmp_path / "in", weights, "RealmEmbedder"),
    tmp_path / "o",
  )
  model = load(tmp_path / "o")
  assert model.params.keys() == {"retriever"}
  _assert_tower(model.params["retriever"]["tower"], _tower_of(weights))
  retriever = model.retriever
  assert (retriever.pooling, retriever.projection_size) == ("pooler", 4)
  assert retriever.projection_norm_eps == retriever.bert.layer_norm_eps
  assert retriever.bert.activation == "gelu_tanh"
  left = report.partition("left unused")[2].partition("randomly")[0]
  assert left.count("a head that embedders have and do not use") == 6
  assert "randomly initialized (parameters): none" in report


def test_a_scorer_shares_its_embedder_or_has_two(tmp_path):
  one = files.embedder("embedder.")
  twin = {
    name.replace("embedder.", "query_embedder.", 1): array
    for name, array in one.items()
  }
  other = files.embedder("query_embedder.", seed=5)
  # In a file, a shared embedder stands once, or under both its names.
  for folder, weights in (("once", one), ("twice", one | twin)):
    source = files.write(tmp_path / folder, weights, "RealmScorer")
    report = import_weights("hf_realm", source, tmp_path / f"{folder}_o")
    model = load(tmp_path / f"{folder}_o")
    assert model.retriever.shared_towers
    tower = model.params["retriever"]["tower"]
    _assert_tower(tower, _tower_of(one, "embedder."))
  # Every tensor is accounted for, the second of each pair too.
  assert (
    "query_embedder.cls.dense.weight [4, 8]: the same as "
    "embedder.cls.dense.weight"
  ) in report
  source = files.write(tmp_path / "two", one | other, "RealmScorer")
  import_weights("hf_realm", source, tmp_path / "two_o")
  towers = load(tmp_path / "two_o").params["retriever"]
  _assert_tower(towers["block_tower"], _tower_of(one, "embedder."))
  _assert_tower(towers["query_tower"], _tower_of(other, "query_embedder."))


@pytest.mark.parametrize("decoder", ["absent", "tied"])
def test_a_knowledge_augmented_encoder_has_a_tied_decoder(tmp_path, decoder):
  weights = files.encoder()
  if decoder != "absent":
    words = weights["realm.embeddings.word_embeddings.weight"]
    weights["cls.predictions.decoder.weight"] = words.copy()
  source = files.write(tmp_path / "in", weights, "RealmKnowledgeAugEncoder")
  report = import_weights("hf_realm", source, tmp_path / "o")
  reader = load(tmp_path / "o").params["reader"]
  np.testing.assert_array_equal(
    reader["masked_lm_head"]["bias"], weights["cls.predictions.bias"]
  )
  assert (
    "reader/span_head/score/kernel [6, 1]" in report.partition("randomly")[2]
  )
  assert "realm.pooler.dense.weight [8, 8]: readers have no pooler" in report


def test_a_reader_has_its_span_head(tmp_path):
  weights = files.reader()
  source = files.write(tmp_path / "in", weights, "RealmReader")
  report = import_weights("hf_realm", source, tmp_path / "o")
  model = load(tmp_path / "o")
  head = model.params["reader"]["span_head"]
  for name, module in (
    ("projection", "dense_intermediate"),
    ("score", "dense_output"),
  ):
    np.testing.assert_array_equal(
      head[name]["kernel"], weights[f"qa_outputs.{module}.weight"].T
    )
  np.testing.assert_array_equal(
    head["norm"]["scale"], weights["qa_outputs.layer_normalization.weight"]
  )
  reader = model.reader
  assert (reader.span_size, reader.max_answer_width) == (files.SPAN, 3)
  assert (reader.span_norm_eps, reader.joint_length) == (1e-3, 48)
  assert "cls.predictions.decoder.weight" in report.partition("left")[2]
  assert "randomly initialized (parameters): none" in report


def test_open_qa_gives_both_parts_and_says_that_vectors_are_left(tmp_path):
  weights = files.embedder("embedder.") | files.reader("reader.")
  weights["block_emb"] = np.ones((26, files.PROJECTED), np.float32)
  source = files.write(tmp_path / "in", weights, "RealmForOpenQA")
  report = import_weights("hf_realm", source, tmp_path / "o")
  model = load(tmp_path / "o")
  tower = model.params["retriever"]["tower"]
  _assert_tower(tower, _tower_of(weights, "embedder."))
  np.testing.assert_array_equal(
    model.params["reader"]["encoder"]["word_embeddings"],
    weights["reader.realm.embeddings.word_embeddings.weight"],
  )
  assert "block_emb [26, 4]: vectors of blocks" in report
  assert "--corpus_dir imports them" in report
  report = import_weights(
    "hf_realm", source, tmp_path / "half", parts=["reader"]
  )
  assert "embedder.cls.dense.weight [4, 8]: the retriever's" in report


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"pooling": "mean"}, "--pooling"),
    ({"projection_size": 3}, "--projection_size"),
    ({"token_types": False}, "--token_types"),
    ({"block_input": "elsewhere"}, "--block_input"),
    ({"parts": ["reader"]}, "--parts=reader"),
  ],
)
def test_what_its_models_leave_no_room_for_is_refused(tmp_path, options, said):
  source = files.write(tmp_path / "in", files.embedder(), "RealmEmbedder")
  with pytest.raises(ConversionError, match=said):
    import_weights("hf_realm", source, tmp_path / "o", **options)


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"architectures": ["RealmBert"]}, "RealmBert"),
    ({"architectures": None}, "nothing"),
    ({"architectures": [[]]}, r"architectures=\[\[\]\]"),
    ({"architectures": 5}, "architectures=5"),
    ({"model_type": "bert"}, "model_type='bert'"),
    ({"retriever_proj_size": 5}, r"cls\.dense\.weight \[4, 8\]"),
  ],
)
def test_another_configuration_is_refused(tmp_path, changes, said):
  source = files.write(tmp_path / "in", files.embedder(), "RealmEmbedder")
  path = tmp_path / "in" / "config.json"
  config = json.loads(path.read_text()) | changes
  path.write_text(json.dumps(config))
  with pytest.raises(ConversionError, match=said):
    import_weights("hf_realm", source, tmp_path / "o")
  assert not (tmp_path / "o").exists()
