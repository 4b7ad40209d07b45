"""REALM directories: which class gives what, and what is left."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.exporting import export_weights
from realm_jax.conversion.hf_realm import plan_hf_realm
from realm_jax.conversion.importing import import_weights
from tests.conversion import hf_bert_files
from tests.conversion.imported import load

_HIDDEN, _PROJECTED, _SPAN = hf_bert_files.HIDDEN, 4, 6
_SIZES = {
  "retriever_proj_size": _PROJECTED,
  "span_hidden_size": _SPAN,
  "max_span_width": 3,
  "reader_layer_norm_eps": 1e-3,
  "reader_seq_len": 48,
  "hidden_act": "gelu_new",
  "model_type": "realm",
  # As RealmConfig has it; what padding is, its tokenizer says.
  "pad_token_id": 1,
}


def _draw(shapes, seed):
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(0, 0.4, shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def _head(prefix):
  vocab = len(hf_bert_files.pieces())
  return {
    f"{prefix}cls.predictions.transform.dense.weight": (_HIDDEN, _HIDDEN),
    f"{prefix}cls.predictions.transform.dense.bias": (_HIDDEN,),
    f"{prefix}cls.predictions.transform.LayerNorm.weight": (_HIDDEN,),
    f"{prefix}cls.predictions.transform.LayerNorm.bias": (_HIDDEN,),
    f"{prefix}cls.predictions.bias": (vocab,),
  }


def _decoder(prefix):
  return {
    f"{prefix}cls.predictions.decoder.weight": (
      len(hf_bert_files.pieces()),
      _HIDDEN,
    )
  }


def _embedder(prefix="", seed=0):
  """A RealmEmbedder's tensors, the head that it does not use among them."""
  shapes = {
    f"{prefix}cls.dense.weight": (_PROJECTED, _HIDDEN),
    f"{prefix}cls.dense.bias": (_PROJECTED,),
    f"{prefix}cls.LayerNorm.weight": (_PROJECTED,),
    f"{prefix}cls.LayerNorm.bias": (_PROJECTED,),
  } | _head(prefix)
  bert = hf_bert_files.tensors(prefix=f"{prefix}realm.", seed=seed)
  return bert | _draw(shapes | _decoder(prefix), seed + 1)


def _encoder():
  bert = hf_bert_files.tensors(prefix="realm.")
  return bert | _draw(_head(""), 7)


def _reader(prefix=""):
  """A RealmReader's tensors; its decoder is its own, and unused."""
  shapes = {
    f"{prefix}qa_outputs.dense_intermediate.weight": (2 * _SPAN, _HIDDEN),
    f"{prefix}qa_outputs.dense_intermediate.bias": (2 * _SPAN,),
    f"{prefix}qa_outputs.layer_normalization.weight": (_SPAN,),
    f"{prefix}qa_outputs.layer_normalization.bias": (_SPAN,),
    f"{prefix}qa_outputs.dense_output.weight": (1, _SPAN),
    f"{prefix}qa_outputs.dense_output.bias": (1,),
  } | _head(prefix)
  bert = hf_bert_files.tensors(prefix=f"{prefix}realm.", seed=3)
  return bert | _draw(shapes | _decoder(prefix), 4)


def _write(directory, weights, architecture, **changes):
  config = {**_SIZES, "architectures": [architecture], **changes}
  return str(hf_bert_files.write(directory, weights, **config))


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
  weights = _embedder()
  report = import_weights(
    "hf_realm",
    _write(tmp_path / "in", weights, "RealmEmbedder"),
    tmp_path / "o",
  )
  model = load(tmp_path / "o")
  assert model.params.keys() == {"retriever"}
  _assert_tower(model.params["retriever"]["tower"], _tower_of(weights))
  retriever = model.retriever
  assert (retriever.pooling, retriever.projection_size) == ("pooler", 4)
  assert retriever.projection_norm_eps == retriever.bert.layer_norm_eps
  assert retriever.bert.activation == "gelu_tanh"
  left = report.partition("left unused")[2].partition("afresh")[0]
  assert left.count("a head that embedders have and do not use") == 6
  assert "initialised afresh (parameters): none" in report


def test_a_scorer_shares_its_embedder_or_has_two(tmp_path):
  one = _embedder("embedder.")
  twin = {
    name.replace("embedder.", "query_embedder.", 1): array
    for name, array in one.items()
  }
  other = _embedder("query_embedder.", seed=5)
  # In a file, a shared embedder stands once, or under both its names.
  for folder, weights in (("once", one), ("twice", one | twin)):
    source = _write(tmp_path / folder, weights, "RealmScorer")
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
  source = _write(tmp_path / "two", one | other, "RealmScorer")
  import_weights("hf_realm", source, tmp_path / "two_o")
  towers = load(tmp_path / "two_o").params["retriever"]
  _assert_tower(towers["block_tower"], _tower_of(one, "embedder."))
  _assert_tower(towers["query_tower"], _tower_of(other, "query_embedder."))


def test_towers_may_be_separated(tmp_path):
  weights = _embedder()
  source = _write(tmp_path / "in", weights, "RealmEmbedder")
  import_weights("hf_realm", source, tmp_path / "o", separate_towers=True)
  towers = load(tmp_path / "o").params["retriever"]
  assert towers.keys() == {"query_tower", "block_tower"}
  for tower in towers.values():
    _assert_tower(tower, _tower_of(weights))


@pytest.mark.parametrize("decoder", ["absent", "tied", "untied"])
def test_a_knowledge_augmented_encoder_has_a_tied_decoder(tmp_path, decoder):
  weights = _encoder()
  if decoder != "absent":
    words = weights["realm.embeddings.word_embeddings.weight"]
    weights["cls.predictions.decoder.weight"] = words + (decoder == "untied")
  source = _write(tmp_path / "in", weights, "RealmKnowledgeAugEncoder")
  if decoder == "untied":
    with pytest.raises(ConversionError, match=r"decoder\.weight .* differ"):
      import_weights("hf_realm", source, tmp_path / "o")
    return
  report = import_weights("hf_realm", source, tmp_path / "o")
  reader = load(tmp_path / "o").params["reader"]
  np.testing.assert_array_equal(
    reader["masked_lm_head"]["bias"], weights["cls.predictions.bias"]
  )
  assert "reader/span_head/score/kernel [6, 1]" in report.partition("afresh")[2]
  assert "realm.pooler.dense.weight [8, 8]: readers do not pool" in report


def test_a_reader_has_its_span_head(tmp_path):
  weights = _reader()
  source = _write(tmp_path / "in", weights, "RealmReader")
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
  assert (reader.span_size, reader.max_answer_width) == (_SPAN, 3)
  assert (reader.span_norm_eps, reader.joint_length) == (1e-3, 48)
  assert "cls.predictions.decoder.weight" in report.partition("left")[2]
  assert "initialised afresh (parameters): none" in report


def test_a_reader_that_says_no_length_has_that_of_transformers(tmp_path):
  source = _write(
    tmp_path / "in", _reader(), "RealmReader", max_position_embeddings=512
  )
  path = tmp_path / "in" / "config.json"
  config = json.loads(path.read_text())
  del config["reader_seq_len"]
  path.write_text(json.dumps(config))
  assert plan_hf_realm(Path(source)).reader.joint_length == 288 + 32


def test_open_qa_gives_both_parts_and_says_that_vectors_are_left(tmp_path):
  weights = _embedder("embedder.") | _reader("reader.")
  weights["block_emb"] = np.ones((26, _PROJECTED), np.float32)
  source = _write(tmp_path / "in", weights, "RealmForOpenQA")
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


_DROPPED = {
  "embedder": "cls.predictions.",
  "scorer": "embedder.cls.predictions.",
  "encoder": "realm.pooler.",
  "reader": ("realm.pooler.", "cls.predictions.decoder."),
}


@pytest.mark.parametrize("model", _DROPPED)
def test_an_import_is_exported_as_it_was(tmp_path, model):
  weights, architecture = {
    "embedder": (_embedder(), "RealmEmbedder"),
    "scorer": (_embedder("embedder."), "RealmScorer"),
    "encoder": (_encoder(), "RealmKnowledgeAugEncoder"),
    "reader": (_reader(), "RealmReader"),
  }[model]
  source = _write(tmp_path / "in", weights, architecture)
  import_weights("hf_realm", source, tmp_path / "run")
  imported = load(tmp_path / "run")
  export_weights(
    to="hf_realm",
    model=model,
    model_dir=tmp_path / "run",
    output_dir=tmp_path / "out",
    retriever=imported.retriever,
    reader=imported.reader,
  )
  out = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
  # All but what the class has and does not use.
  wanted = {
    name: array
    for name, array in weights.items()
    if not name.startswith(_DROPPED[model])
  }
  assert out.keys() == wanted.keys()
  for name, array in wanted.items():
    np.testing.assert_array_equal(out[name], array, err_msg=name)
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  known = ("model_type", "hidden_act", "architectures")
  of_reader = ("span_hidden_size", "max_span_width", "reader_layer_norm_eps")
  for name in (*known, *(of_reader if model == "reader" else ())):
    assert config[name] == {**_SIZES, "architectures": [architecture]}[name]


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
  source = _write(tmp_path / "in", _embedder(), "RealmEmbedder")
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
  source = _write(tmp_path / "in", _embedder(), "RealmEmbedder")
  path = tmp_path / "in" / "config.json"
  config = json.loads(path.read_text()) | changes
  path.write_text(json.dumps(config))
  with pytest.raises(ConversionError, match=said):
    import_weights("hf_realm", source, tmp_path / "o")
  assert not (tmp_path / "o").exists()


def test_a_file_of_another_class_is_named_by_its_tensors(tmp_path):
  source = _write(tmp_path / "in", _encoder(), "RealmEmbedder")
  with pytest.raises(ConversionError, match="projection/kernel"):
    import_weights("hf_realm", source, tmp_path / "o")
