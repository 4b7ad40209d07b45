"""TensorFlow 1's BERT computes here what its variables say."""

import functools

import jax
import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from tests.conversion.google import checkpoint_files as files
from tests.conversion.imported import import_weights, load

pytestmark = pytest.mark.slow

# `[CLS] … [SEP] … [SEP]`, and a shorter one that is padded.
_LONG = [2, 9, 11, 3, 7, 8, 21, 3]
_SHORT = [2, 14, 3]
_BATCH = np.array([_LONG, _SHORT + [0] * 5], np.int32)


def test_vectors_and_masked_words_are_those_of_the_variables(tmp_path):
  variables = files.bert()
  left = {
    "cls/seq_relationship/output_weights": np.zeros((2, 4), np.float32),
    "cls/seq_relationship/output_bias": np.zeros(2, np.float32),
  }
  files.write_bert(tmp_path / "bert", files.with_adam(variables | left))
  report = import_weights("tf_bert", str(tmp_path / "bert"), tmp_path / "run")
  assert "cls/seq_relationship/output_bias [2]: a next-sentence head" in report
  assert "bert/pooler/dense/bias/adam_v [128]: a moment of Adam" in report
  assert "global_step []: " in report
  assert "pooling: pooler" in report

  model = load(tmp_path / "run")
  embed = functools.partial(model.retriever.apply, method="embed_queries")
  vectors = jax.jit(embed)({"params": model.params["retriever"]}, _BATCH)
  wanted = [
    np.tanh(
      files.dense(
        files.last_hidden(variables, tokens)[0], variables, "bert/pooler/dense"
      )
    )
    for tokens in (_LONG, _SHORT)
  ]
  np.testing.assert_allclose(vectors, wanted, atol=1e-5)

  logits, _ = jax.jit(model.reader.apply)(
    {"params": model.params["reader"]},
    np.array([[2, 9, 4, 3]], np.int32),
    np.array([[[2, 10, 3, 7, 8, 3]]], np.int32),
    np.array([[2]], np.int32),
  )
  # The reader joins the query with the block's body alone.
  wanted = files.masked_logits(variables, [2, 9, 4, 3, 7, 8, 3], 2)
  np.testing.assert_allclose(logits[0, 0, 0], wanted, atol=1e-4)


def test_the_numerics_are_those_of_googles_code(tmp_path):
  files.write_bert(
    tmp_path / "bert", files.bert(head=False), hidden_dropout_prob=0.2
  )
  report = import_weights("tf_bert", str(tmp_path / "bert"), tmp_path / "run")
  config = load(tmp_path / "run").retriever.bert
  assert config.activation == "gelu_tanh"
  assert config.attention_mask_value == -10000
  assert config.layer_norm_eps == 1e-12
  assert config.num_heads == files.HEADS
  assert config.dropout_rate == 0.2
  assert "attention_probs_dropout_prob=0.1 is not used" in report


def test_what_has_no_place_or_is_missing_is_an_error(tmp_path):
  variables = files.bert()
  variables["cls/squad/output_weights"] = np.zeros((2, 4), np.float32)
  del variables["bert/encoder/layer_1/output/dense/kernel"]
  files.write_bert(tmp_path / "bert", variables)
  with pytest.raises(ConversionError) as error:
    import_weights("tf_bert", str(tmp_path / "bert"), tmp_path / "run")
  assert "cls/squad/output_weights [2, 4]" in str(error.value)
  assert "tower/encoder/layer_1/down/kernel [12, 128]" in str(error.value)
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("changes", "found"),
  [
    ({"hidden_act": "relu"}, "hidden_act='relu'"),
    ({"type_vocab_size": 16}, "type_vocab_size=16"),
    ({"vocab_size": 7}, "vocab_size=7, but the vocabulary has"),
    ({"num_hidden_layers": 3}, "encoder/layer_2"),
  ],
)
def test_a_configuration_of_something_else_is_refused(tmp_path, changes, found):
  files.write_bert(tmp_path / "bert", files.bert(), **changes)
  with pytest.raises(ConversionError, match=found):
    import_weights("tf_bert", str(tmp_path / "bert"), tmp_path / "run")
