"""BERT directories: vectors equal those of a reference implementation."""

import jax
import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from tests.conversion.hugging_face import bert_files as files
from tests.conversion.imported import load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  ("prefix", "kind"),
  [
    ("bert.", "bert"),
    ("0.auto_model.", "bert"),
    ("question_encoder.bert_model.", "dpr"),
  ],
)
def test_a_prefix_of_the_names_is_found(tmp_path, prefix, kind):
  weights = files.tensors(prefix=prefix)
  files.write(tmp_path / "bert", weights, model_type=kind)
  files.import_bert(tmp_path / "bert", tmp_path / "out", pooling="cls")
  wanted = [hidden[0] for hidden in files.hidden(weights, prefix)]
  np.testing.assert_allclose(files.vectors(tmp_path / "out"), wanted, atol=2e-5)


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
  for name in ("new", "old"):
    files.import_bert(tmp_path / name, tmp_path / f"{name}_out")
  new, old = (load(tmp_path / f"{name}_out").params for name in ("new", "old"))
  jax.tree.map(np.testing.assert_array_equal, new, old)


def test_a_tied_decoder_is_a_copy_of_the_words(tmp_path):
  weights = files.tensors(prefix="bert.", head=True)
  words = weights["bert.embeddings.word_embeddings.weight"]
  weights["cls.predictions.decoder.weight"] = words.copy()
  weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
  weights["cls.seq_relationship.weight"] = np.zeros((2, 8), np.float32)
  files.write(tmp_path / "bert", weights)
  report = files.import_bert(
    tmp_path / "bert", tmp_path / "out", parts=["retriever", "reader"]
  )
  assert "cls.seq_relationship.weight [2, 8]: a next-sentence head" in report
  for copy, original in (
    ("decoder.weight [109, 8]", "bert.embeddings.word_embeddings.weight"),
    ("decoder.bias [109]", "cls.predictions.bias"),
  ):
    assert f"cls.predictions.{copy}: the same as {original}" in report
  _, _, fresh = report.partition("randomly initialized")
  assert "reader/span_head/projection/kernel [8, 512]" in fresh
  assert "reader/masked_lm_head" not in fresh


def test_an_untied_decoder_is_refused_by_name(tmp_path):
  weights = files.tensors(prefix="bert.", head=True)
  shape = weights["bert.embeddings.word_embeddings.weight"].shape
  weights["cls.predictions.decoder.weight"] = np.zeros(shape, np.float32)
  files.write(tmp_path / "bert", weights)
  with pytest.raises(ConversionError, match=r"decoder\.weight .* differ"):
    files.import_bert(tmp_path / "bert", tmp_path / "out", parts=["reader"])
  assert not (tmp_path / "out").exists()
  # A retriever has no head, so nothing of it is looked at.
  report = files.import_bert(tmp_path / "bert", tmp_path / "out")
  assert "cls.predictions.decoder.weight" in report.partition("left")[2]


def test_two_towers_start_from_one_directory_or_from_two(tmp_path):
  one, two = files.tensors(), files.tensors(seed=1)
  files.write(tmp_path / "one", one)
  files.write(tmp_path / "two", two)
  settings = {"pooling": "cls"}
  files.import_bert(
    tmp_path / "one", tmp_path / "same", separate_towers=True, **settings
  )
  assert load(tmp_path / "same").params["retriever"].keys() == {
    "query_tower",
    "block_tower",
  }
  np.testing.assert_array_equal(
    files.vectors(tmp_path / "same"),
    files.vectors(tmp_path / "same", "embed_blocks"),
  )
  files.import_bert(
    tmp_path / "one",
    tmp_path / "dpr",
    block_input=str(tmp_path / "two"),
    **settings,
  )
  for weights, method in ((one, "embed_queries"), (two, "embed_blocks")):
    wanted = [hidden[0] for hidden in files.hidden(weights)]
    np.testing.assert_allclose(
      files.vectors(tmp_path / "dpr", method), wanted, atol=2e-5
    )


def test_the_model_file_says_what_the_weights_depend_on(tmp_path):
  files.write(
    tmp_path / "bert",
    files.tensors(),
    hidden_act="gelu_new",
    layer_norm_eps=1e-5,
  )
  files.import_bert(tmp_path / "bert", tmp_path / "out")
  model = load(tmp_path / "out")
  assert model.retriever.bert.activation == "gelu_tanh"
  assert model.retriever.bert.layer_norm_eps == 1e-5
  assert model.retriever.bert.attention_mask_value == float(
    np.finfo(np.float32).min
  )
  assert model.reader.bert == model.retriever.bert
  assert model.reader.joint_length == files.POSITIONS


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"model_type": "roberta"}, "model_type='roberta'"),
    ({"model_type": "dpr", "projection_dim": 4}, "projection_dim=4"),
    ({"hidden_act": "relu"}, "hidden_act='relu'"),
    ({"position_embedding_type": "relative_key"}, "relative_key"),
    ({"type_vocab_size": 1}, "type_vocab_size=1"),
    ({"num_attention_heads": 3}, "num_heads=3"),
    ({"hidden_act": []}, r"hidden_act=\[\]"),
    ({"hidden_size": "wide"}, "hidden_size='wide'"),
    ({"vocab_size": None}, "vocab_size=None; want a whole number"),
    ({"vocab_size": "30522"}, "vocab_size='30522'; want a whole number"),
    ({"layer_norm_eps": float("nan")}, "layer_norm_eps=nan"),
    ({"vocab_size": 9999}, "unused_row"),
    ({"vocab_size": 20}, "another model's vocabulary"),
    ({"intermediate_size": 16}, r"\[12, 8\], where .* wants \[16, 8\]"),
    ({"num_hidden_layers": 1}, r"encoder\.layer\.1\.[^\n]* \["),
    ({"num_hidden_layers": 3}, r"encoder/layer_2/"),
  ],
)
def test_another_model_is_refused_before_anything_is_written(
  tmp_path, changes, said
):
  files.write(tmp_path / "bert", files.tensors(), **changes)
  with pytest.raises(ConversionError, match=said):
    files.import_bert(tmp_path / "bert", tmp_path / "out")
  assert [p.name for p in tmp_path.iterdir()] == ["bert"]


def test_several_encoders_want_a_choice(tmp_path):
  weights = files.tensors(prefix="query.")
  weights |= files.tensors(prefix="block.", seed=1)
  files.write(tmp_path / "bert", weights)
  with pytest.raises(ConversionError, match=r"'block\.', 'query\.'"):
    files.import_bert(tmp_path / "bert", tmp_path / "out")
  files.import_bert(
    tmp_path / "bert",
    tmp_path / "out",
    tensor_prefix="query.",
    allow_left=[r"block\..*"],
    pooling="cls",
  )
  wanted = [hidden[0] for hidden in files.hidden(weights, "query.")]
  np.testing.assert_allclose(files.vectors(tmp_path / "out"), wanted, atol=2e-5)


def test_towers_that_do_not_go_together_are_refused(tmp_path):
  files.write(tmp_path / "one", files.tensors())
  pieces = files.pieces()
  pieces[9], pieces[10] = pieces[10], pieces[9]
  files.write(tmp_path / "words", files.tensors(), vocabulary=pieces)
  files.write(tmp_path / "sizes", files.tensors(), layer_norm_eps=1e-5)
  files.write(tmp_path / "means", files.tensors())
  files.write_sentence_modules(tmp_path / "means")
  for name, said in (
    ("words", "different vocabularies"),
    ("sizes", "different configuration"),
    ("means", "different ways"),
  ):
    with pytest.raises(ConversionError, match=said):
      files.import_bert(
        tmp_path / "one",
        tmp_path / "out",
        block_input=str(tmp_path / name),
      )
