"""transformers' REALM classes, out and back in, and in and back out."""

import json

import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face import exports
from tests.conversion import exported
from tests.conversion.hugging_face import realm_files as files
from tests.conversion.imported import import_weights, load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  ("model", "retriever", "parts"),
  [
    ("open_qa", exported.RETRIEVER, {"retriever", "reader"}),
    # A scorer with one tower, and the rest, below: in and back out.
    ("scorer", exported.RETRIEVER.clone(shared_towers=False), {"retriever"}),
  ],
)
def test_a_realm_comes_back_bit_for_bit(tmp_path, model, retriever, parts):
  params = exported.save(tmp_path / "run", retriever)
  report = exported.export(
    tmp_path / "run", tmp_path / "out", retriever, to="hf_realm", model=model
  )
  import_weights("hf_realm", str(tmp_path / "out"), tmp_path / "back")
  back = load(tmp_path / "back")
  assert back.params.keys() == parts
  exported.assert_same_bits(back.params["retriever"], params["retriever"])
  assert back.retriever.shared_towers == retriever.shared_towers
  assert back.retriever.projection_size == 4
  assert back.retriever.projection_norm_eps == 1e-12
  # Else transformers would read both towers' place from one.
  says_how = "query_embedder=RealmEmbedder(config)" in report
  assert says_how != retriever.shared_towers
  if "reader" in parts:
    exported.assert_same_bits(back.params["reader"], params["reader"])
    assert back.reader.bert.activation == "gelu_tanh"
    assert back.reader.joint_length == 40
    assert back.reader.span_size == 6
    assert back.reader.span_norm_eps == 1e-3
    assert back.reader.max_answer_width == 4


_DROPPED = {
  "embedder": "cls.predictions.",
  "scorer": "embedder.cls.predictions.",
  "encoder": "realm.pooler.",
  "reader": ("realm.pooler.", "cls.predictions.decoder."),
}


@pytest.mark.parametrize("model", _DROPPED)
def test_an_import_is_exported_as_it_was(tmp_path, model):
  weights, architecture = {
    "embedder": (files.embedder(), "RealmEmbedder"),
    "scorer": (files.embedder("embedder."), "RealmScorer"),
    "encoder": (files.encoder(), "RealmKnowledgeAugEncoder"),
    "reader": (files.reader(), "RealmReader"),
  }[model]
  source = files.write(tmp_path / "in", weights, architecture)
  import_weights("hf_realm", source, tmp_path / "run")
  imported = load(tmp_path / "run")
  exported.export(
    tmp_path / "run",
    tmp_path / "out",
    imported.retriever,
    imported.reader,
    to="hf_realm",
    model=model,
  )
  # All but what the class has and does not use.
  wanted = {
    name: array
    for name, array in weights.items()
    if not name.startswith(_DROPPED[model])
  }
  exported.assert_same_bits(exported.tensors(tmp_path / "out"), wanted)
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  known = ("model_type", "hidden_act", "architectures")
  of_reader = ("span_hidden_size", "max_span_width", "reader_layer_norm_eps")
  original = {**files.SIZES, "architectures": [architecture]}
  for name in (*known, *(of_reader if model == "reader" else ())):
    assert config[name] == original[name]


def test_a_realm_has_the_names_of_transformers(tmp_path):
  params = exported.save(tmp_path / "run")
  exported.export(
    tmp_path / "run", tmp_path / "out", to="hf_realm", model="open_qa"
  )
  tensors = exported.tensors(tmp_path / "out")
  tower, reader = params["retriever"]["tower"], params["reader"]
  for name, array in {
    "embedder.cls.dense.weight": tower["projection"]["kernel"].T,
    "embedder.cls.LayerNorm.weight": tower["projection_norm"]["scale"],
    "embedder.realm.pooler.dense.bias": tower["pooler"]["bias"],
    "reader.realm.encoder.layer.1.output.dense.weight": reader["encoder"][
      "layer_1"
    ]["down"]["kernel"].T,
    "reader.cls.predictions.bias": reader["masked_lm_head"]["bias"],
    "reader.qa_outputs.dense_intermediate.weight": reader["span_head"][
      "projection"
    ]["kernel"].T,
    "reader.qa_outputs.layer_normalization.bias": reader["span_head"]["norm"][
      "bias"
    ],
    "reader.qa_outputs.dense_output.bias": reader["span_head"]["score"]["bias"],
  }.items():
    np.testing.assert_array_equal(tensors[name], array)


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"pooling": "mean"}, "pooling='mean'"),
    ({"projection_size": None}, "no projection"),
    ({"normalize": True}, "normalize=True"),
    ({"score_scale": 2.0}, "score_scale=2.0"),
    ({"projection_norm_eps": 1e-3}, "projection_norm_eps=0.001"),
    ({"token_types": False}, "token_types=False"),
  ],
)
def test_what_transformers_realm_cannot_be_is_refused(changes, said):
  model = exported.model(exported.RETRIEVER.clone(**changes))
  with pytest.raises(ConversionError, match=said):
    exports.plan_realm_export(model, "scorer", None)
