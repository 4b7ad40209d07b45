"""Google's checkpoints: which variable becomes which parameter."""

import numpy as np
import pytest

from realm_jax.weights import WeightsError, google
from tests.weights import tf_files as files
from tests.weights.models import part_of_report, read
from tests.weights.tf_files import ICT, REALM

pytestmark = pytest.mark.slow

# Open QA wraps the modules once more.
_TUNED = "module/module/module/"


def _assert_same(params, variables, names):
  """Checks parameters by paths against variables by names."""
  for path, name in names.items():
    np.testing.assert_array_equal(params[path], variables[name], err_msg=path)


def _bert(path, scope):
  """Some names in an encoder, from its first layer to its last."""
  layer = f"{scope}bert/encoder/layer_1"
  return {
    f"{path}/word_embeddings": f"{scope}bert/embeddings/word_embeddings",
    f"{path}/layer_1/attention/key/bias": f"{layer}/attention/self/key/bias",
    f"{path}/layer_1/down/bias": f"{layer}/output/dense/bias",
    f"{path}/layer_1/output_norm/scale": f"{layer}/output/LayerNorm/gamma",
  }


def _tower(scope, norm, tower="tower"):
  path = f"retriever/{tower}"
  return _bert(f"{path}/encoder", f"{scope}module/") | {
    f"{path}/pooler/kernel": f"{scope}module/bert/pooler/dense/kernel",
    f"{path}/projection/kernel": f"{scope}dense/kernel",
    f"{path}/projection_norm/bias": f"{scope}{norm}/beta",
  }


def _reader(scope=""):
  head = f"{scope}cls/predictions"
  return _bert("reader/encoder", scope) | {
    "reader/masked_lm_head/dense/kernel": f"{head}/transform/dense/kernel",
    "reader/masked_lm_head/norm/bias": f"{head}/transform/LayerNorm/beta",
    "reader/masked_lm_head/bias": f"{head}/output_bias",
  }


def test_records_are_read_in_order_and_to_their_end(tmp_path):
  # More than are read at a time.
  texts = [b"", b"\xff\x00", *(f"block {i} ë".encode() for i in range(3000))]
  for name in ("blocks.tfr.gz", "blocks.tfr"):
    path = files.write_records(tmp_path / name, texts)
    assert list(google.read_records(path)) == texts
  path.write_bytes(path.read_bytes()[:-5])
  with pytest.raises(WeightsError, match="whole file of TFRecords"):
    list(google.read_records(path))


def test_bert_has_the_variables_and_the_numerics_of_googles_code(tmp_path):
  variables = files.bert()
  head = {"cls/seq_relationship/output_weights": np.zeros((2, 4), np.float32)}
  written = files.with_adam(variables | head)
  files.write_bert(tmp_path, written, hidden_dropout_prob=0.2)
  mapped = read("tf_bert", tmp_path)
  pooler = {"retriever/tower/pooler/kernel": "bert/pooler/dense/kernel"}
  names = _bert("retriever/tower/encoder", "") | pooler | _reader()
  _assert_same(mapped.parameters, variables, names)
  unused = part_of_report(mapped, "unused")
  assert "cls/seq_relationship/output_weights [2, 4]" in unused
  assert "bert/pooler/dense/bias/adam_v [128]: a moment of Adam" in unused
  assert "global_step []: " in unused
  config = mapped.model.retriever.bert
  assert config.activation == "gelu_tanh"
  assert config.attention_mask_value == -10000
  assert (config.layer_norm_eps, config.dropout_rate) == (1e-12, 0.2)


def test_a_module_of_ict_has_the_epsilon_of_its_library(tmp_path):
  variables = files.write_module(tmp_path, files.embedder(**ICT))
  # Beside a module, a configuration says the number of heads.
  path = tmp_path / "bert_config.json"
  path.write_text(files.config(num_attention_heads=4))
  mapped = read("tf_realm", tmp_path)
  _assert_same(mapped.parameters, variables, _tower(**ICT))
  assert "cls/predictions/output_bias" in part_of_report(mapped, "unused")
  assert mapped.parts == ["retriever"]
  retriever = mapped.model.retriever
  assert retriever.projection_norm_eps == 1e-3
  assert retriever.bert.num_heads == 4


def test_a_pre_trained_release_gives_retriever_and_reader(tmp_path):
  embedder, bert = tmp_path / "embedder", tmp_path / "bert"
  retriever = files.write_module(embedder, files.embedder(**REALM))
  reader = files.write_module(bert, files.bert(seed=5))
  mapped = read("tf_realm", tmp_path)
  _assert_same(mapped.parameters, retriever, _tower(**REALM))
  _assert_same(mapped.parameters, reader, _reader())
  assert "bert/bert/pooler/dense/kernel [128, 128]" in "\n".join(mapped.lines)
  fresh = part_of_report(mapped, "parameters of random values")
  assert "reader/span_head/projection/kernel" in fresh
  reader = mapped.model.reader
  assert (reader.joint_length, reader.span_size) == (64, 256)


def test_a_fine_tuned_model_reads_and_retrieves(tmp_path):
  variables = files.write_fine_tuned(tmp_path, _TUNED)
  mapped = read("tf_realm", tmp_path)
  span_head = {
    "reader/span_head/projection/kernel": "reader/dense/kernel",
    "reader/span_head/score/kernel": "reader/dense_1/kernel",
    "reader/span_head/norm/scale": "reader/layer_normalization/gamma",
  }
  names = _tower(_TUNED, "LayerNorm") | _reader("reader/module/") | span_head
  _assert_same(mapped.parameters, variables, names)
  assert "parameters of random values: none" in "\n".join(mapped.lines)
  retriever, reader, _ = mapped.model
  assert retriever.projection_norm_eps == 1e-12
  assert (reader.span_size, reader.span_norm_eps) == (files.SPAN, 1e-3)
  assert (reader.joint_length, reader.max_answer_width) == (40, 4)
  # One part leaves the other. Without params.json, positions are the limit.
  (tmp_path / "params.json").unlink()
  half = read("tf_realm", tmp_path, parts=["reader"])
  assert f"{_TUNED}dense/kernel [128, 8]" in part_of_report(half, "unused")
  assert half.model.reader.joint_length == 64


def test_blocks_keep_the_tower_that_embedded_them(tmp_path):
  vectors, _ = files.write_release(tmp_path / "release")
  nq = tmp_path / "nq"
  tuned = files.write_fine_tuned(nq, _TUNED)
  (nq / "vocab.txt").unlink()  # The module's will do.
  mapped = read("tf_realm", nq, block_input=tmp_path / "release")
  names = _tower(_TUNED, "LayerNorm", "query_tower")
  _assert_same(mapped.parameters, tuned, names)
  names = _tower(**REALM, tower="block_tower")
  _assert_same(mapped.parameters, files.embedder(**REALM), names)
  # A variable that is alone stays on the disk.
  released = mapped.source.block_vectors
  assert isinstance(released, np.memmap)
  np.testing.assert_array_equal(released, vectors)
  # Those of the query tower's home were embedded by another one.
  other = tmp_path / "other"
  files.write_module(other, files.embedder(**REALM, seed=3))
  reverse = read("tf_realm", tmp_path / "release", block_input=other)
  assert reverse.source.block_vectors is None
