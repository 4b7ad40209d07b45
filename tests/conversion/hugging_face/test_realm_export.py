"""transformers' REALM classes, out and back in, and in and back out."""

import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face import exports
from tests.conversion import exported
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
