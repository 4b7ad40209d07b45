"""Google's checkpoints compute here what their variables say."""

import functools
import json

import jax
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from realm_jax.weights import google
from realm_jax.weights.model import nested
from tests.weights import tf_files as files
from tests.weights.imported import read
from tests.weights.tf_files import ICT, REALM

pytestmark = pytest.mark.slow

# `[CLS] … [SEP] … [SEP]`, and a shorter one that is padded.
_QUERY, _OTHER = [2, 9, 11, 3, 7, 8, 21, 3], [2, 14, 3]
_QUERIES = np.array([_QUERY, [*_OTHER, 0, 0, 0, 0, 0]], np.int32)
_BLOCK = [2, 10, 3, 7, 8, 21, 12, 3]


def _embed(found, method="embed_queries", token_ids=_QUERIES):
  retriever = found.plan.model.retriever
  embed = functools.partial(retriever.apply, method=method)
  params = nested(found.params)["retriever"]
  return np.asarray(jax.jit(embed)({"params": params}, token_ids))


def _read_with(found, query):
  """The reader's logits of words at position 2, and its spans."""
  logits, spans = jax.jit(found.plan.model.reader.apply)(
    {"params": nested(found.params)["reader"]},
    np.array([query], np.int32),
    np.array([[_BLOCK]], np.int32),
    np.array([[2]], np.int32),
  )
  return logits[0, 0, 0], spans


# --- Files ----------------------------------------------------------------


def test_variables_by_name_in_their_own_type(tmp_path):
  variables = {
    "bert/a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bert/half": np.array([1.5, -2], ml_dtypes.bfloat16),
    "global_step": np.int64(7),
  }
  prefix = files.save(tmp_path / "model.ckpt-7", variables)
  found = google.open_checkpoint(prefix)
  for name, value in variables.items():
    assert found[name].shape == value.shape
    read_value = np.asarray(found[name])
    assert read_value.dtype == value.dtype
    np.testing.assert_array_equal(read_value, value)


def test_a_variable_alone_stays_on_the_disk(tmp_path):
  vectors = np.random.default_rng(0).standard_normal((50, 4), np.float32)
  prefix = files.save(tmp_path / "encoded.ckpt", {"block_emb": vectors})
  rows = google.open_checkpoint(prefix)["block_emb"].rows()
  assert isinstance(rows, np.memmap)
  np.testing.assert_array_equal(rows[10:20], vectors[10:20])
  # Beside another it is read as any variable.
  more = {"another": np.ones((3, 4), np.float32), "block_emb": vectors}
  found = google.open_checkpoint(files.save(tmp_path / "more.ckpt", more))
  np.testing.assert_array_equal(found["block_emb"].rows(), vectors)


@pytest.mark.parametrize(
  ("name", "compression"), [("blocks.tfr", ""), ("blocks.tfr.gz", "GZIP")]
)
def test_records_in_order_at_each_pass(tmp_path, name, compression):
  # More than are read at a time.
  texts = [b"", b"\xff\x00", *(f"block {i} ë".encode() for i in range(3000))]
  with tf.io.TFRecordWriter(str(tmp_path / name), compression) as writer:
    for text in texts:
      writer.write(text)
  records = google.TfRecords(tmp_path / name)
  assert list(records) == texts
  assert list(records) == texts


# --- BERT -----------------------------------------------------------------


def test_berts_vectors_and_masked_words_are_those_of_its_variables(tmp_path):
  variables = files.bert()
  head = {"cls/seq_relationship/output_weights": np.zeros((2, 4), np.float32)}
  written = files.with_adam(variables | head)
  files.write_bert(tmp_path, written, hidden_dropout_prob=0.2)
  found = read("tf_bert", tmp_path)
  unused = found.part_of_report("unused")
  assert "cls/seq_relationship/output_weights [2, 4]" in unused
  assert "bert/pooler/dense/bias/adam_v [128]: a moment of Adam" in unused
  assert "global_step []: " in unused
  config = found.plan.model.retriever.bert
  assert (config.activation, config.attention_mask_value) == (
    "gelu_tanh",
    -10000,
  )
  assert (config.layer_norm_eps, config.dropout_rate) == (1e-12, 0.2)
  pooler = "bert/pooler/dense"
  wanted = [
    np.tanh(files.dense(files.last_hidden(variables, t)[0], variables, pooler))
    for t in (_QUERY, _OTHER)
  ]
  np.testing.assert_allclose(_embed(found), wanted, atol=1e-5)
  logits, _ = _read_with(found, [2, 9, 4, 3])
  # The reader joins the query with the block's body alone.
  wanted = files.masked_logits(variables, [2, 9, 4, 3, *_BLOCK[3:]], 2)
  np.testing.assert_allclose(logits, wanted, atol=1e-4)


# --- REALM and ORQA -------------------------------------------------------


@pytest.mark.parametrize(
  ("names", "eps"), [(REALM, 1e-12), (ICT, 1e-3)], ids=["realm", "ict"]
)
def test_a_retriever_module_embeds_as_it_was_trained(tmp_path, names, eps):
  variables = files.write_retriever(tmp_path, **names)
  found = read("tf_realm", tmp_path)
  assert "cls/predictions/output_bias" in found.part_of_report("unused")
  assert found.plan.parts == ["retriever"]
  assert found.plan.model.retriever.projection_norm_eps == eps
  vector = functools.partial(
    files.vector,
    variables,
    scope=names["scope"],
    norm_name=names["norm"],
    eps=eps,
  )
  wanted = [vector(tokens) for tokens in (_QUERY, _OTHER)]
  np.testing.assert_allclose(_embed(found), wanted, atol=2e-4)
  blocks = _embed(found, "embed_blocks", np.array([_BLOCK], np.int32))
  np.testing.assert_allclose(blocks, [vector(_BLOCK)], atol=2e-4)
  # With the other epsilon they would be others.
  other = functools.partial(vector, eps=1e-3 if eps == 1e-12 else 1e-12)
  assert abs(wanted[0] - other(_QUERY)).max() > 1e-2


def test_a_pre_trained_release_gives_retriever_and_reader(tmp_path):
  files.write_retriever(tmp_path / "embedder", **REALM)
  variables = files.bert(seed=5)
  files.write_module(tmp_path / "bert", variables)
  found = read("tf_realm", tmp_path)
  assert "bert/bert/pooler/dense/kernel [128, 128]" in found.report
  fresh = found.part_of_report("parameters of random values")
  assert "reader/span_head/projection/kernel" in fresh
  assert found.plan.parts == ["retriever", "reader"]
  reader = found.plan.model.reader
  assert (reader.joint_length, reader.span_size) == (64, 256)
  logits, _ = _read_with(found, [2, 9, 4, 3])
  wanted = files.masked_logits(variables, [2, 9, 4, 3, *_BLOCK[3:]], 2)
  np.testing.assert_allclose(logits, wanted, atol=1e-4)


@pytest.mark.parametrize(
  ("scope", "norm", "eps"),
  [
    ("module/module/module/", "LayerNorm", 1e-12),
    ("module/", "layer_normalization", 1e-3),
  ],
  ids=["realm", "orqa"],
)
def test_a_fine_tuned_model_reads_and_retrieves(tmp_path, scope, norm, eps):
  variables = files.write_fine_tuned(tmp_path, embedder_scope=scope, norm=norm)
  found = read("tf_realm", tmp_path)
  assert "parameters of random values: none" in found.report
  reader = found.plan.model.reader
  assert (reader.span_size, reader.span_norm_eps) == (files.SPAN, 1e-3)
  assert (reader.joint_length, reader.max_answer_width) == (40, 4)
  wanted = [
    files.vector(variables, tokens, scope=scope, norm_name=norm, eps=eps)
    for tokens in (_QUERY, _OTHER)
  ]
  np.testing.assert_allclose(_embed(found), wanted, atol=2e-4)
  query = [2, 9, 11, 3]
  _, spans = _read_with(found, query)
  # `[CLS] query [SEP] body [SEP]`: four words of the body, from position 4.
  hidden = files.last_hidden(variables, query + _BLOCK[3:], "reader/module/")
  for start in range(4):
    for width in range(4):
      is_span = start + width < 4
      assert spans.is_span[0, 0, start, width] == is_span
      if is_span:
        wanted = files.span_logit(
          variables, hidden, 4 + start, 4 + start + width
        )
        logit = spans.logits[0, 0, start, width]
        np.testing.assert_allclose(logit, wanted, atol=1e-4)
  # One part leaves the other.
  half = read("tf_realm", tmp_path, parts=["retriever"])
  assert "reader/dense_1/kernel [6, 1]" in half.part_of_report("unused")
  half = read("tf_realm", tmp_path, parts=["reader"])
  assert f"{scope}dense/kernel [128, 8]" in half.part_of_report("unused")


def test_blocks_keep_the_tower_that_embedded_them(tmp_path):
  vectors, _ = files.write_release(tmp_path / "release")
  of_blocks = files.embedder(**REALM)
  nq = tmp_path / "nq"
  tuned = files.write_fine_tuned(nq, embedder_scope="module/module/module/")
  (nq / "vocab.txt").unlink()  # The module's will do.
  found = read("tf_realm", nq, block_input=tmp_path / "release")
  for tower, scope, variables in (
    ("query_tower", "module/module/module/", tuned),
    ("block_tower", "module/module/", of_blocks),
  ):
    scale = found.params[f"retriever/{tower}/projection_norm/scale"]
    np.testing.assert_array_equal(scale, variables[f"{scope}LayerNorm/gamma"])
  np.testing.assert_array_equal(found.plan.block_vectors[:], vectors)
  # Those of the query tower's home were embedded by another one.
  other = tmp_path / "other"
  files.write_retriever(other, **REALM, seed=3)
  reverse = read("tf_realm", tmp_path / "release", block_input=other)
  assert reverse.plan.block_vectors is None


def test_a_configuration_beside_a_module_says_the_heads(tmp_path):
  files.write_retriever(tmp_path, **REALM)
  config = files.config(num_attention_heads=4)
  (tmp_path / "bert_config.json").write_text(json.dumps(config))
  assert read("tf_realm", tmp_path).plan.model.retriever.bert.num_heads == 4


def test_an_open_qa_reader_has_room_for_block_and_question(tmp_path):
  files.write_fine_tuned(tmp_path, embedder_scope="module/")
  (tmp_path / "params.json").unlink()
  # As long as its positions allow.
  assert read("tf_realm", tmp_path).plan.model.reader.joint_length == 64
