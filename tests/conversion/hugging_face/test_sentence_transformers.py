"""What sentence-transformers says beside BERT's weights is followed."""

import json

import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.sentence_transformers.reading import (
  read_sentence_model,
)
from tests.conversion.hugging_face import bert_files as files
from tests.conversion.imported import import_weights, load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("normalize", [True, False])
def test_sentence_transformers_modules_are_followed(tmp_path, normalize):
  weights = files.tensors()
  files.write(tmp_path / "bert", weights)
  files.write_sentence_modules(tmp_path / "bert", normalize=normalize)
  files.write_json(
    tmp_path / "bert" / "sentence_bert_config.json", {"max_seq_length": 32}
  )
  report = files.import_bert(
    tmp_path / "bert", tmp_path / "out", score_scale=20.0
  )
  assert "the first 32 tokens" in report
  retriever = load(tmp_path / "out").retriever
  assert (retriever.pooling, retriever.normalize) == ("mean", normalize)
  assert retriever.score_scale == 20.0
  wanted = np.stack([hidden.mean(0) for hidden in files.hidden(weights)])
  if normalize:
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
  np.testing.assert_allclose(files.vectors(tmp_path / "out"), wanted, atol=2e-5)


def test_a_flag_goes_before_the_modules(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  files.write_sentence_modules(tmp_path / "bert", mode="cls_token")
  files.import_bert(tmp_path / "bert", tmp_path / "one")
  assert load(tmp_path / "one").retriever.pooling == "cls"
  files.import_bert(
    tmp_path / "bert", tmp_path / "two", pooling="mean", normalize=False
  )
  retriever = load(tmp_path / "two").retriever
  assert (retriever.pooling, retriever.normalize) == ("mean", False)


@pytest.mark.parametrize(
  ("chain", "said"),
  [
    (["Transformer", "Pooling", "Dense"], "chains Transformer, Pooling, Dense"),
    (["WordEmbeddings", "Pooling"], "WordEmbeddings"),
  ],
)
def test_other_modules_are_refused(tmp_path, chain, said):
  files.write_sentence_modules(tmp_path, mode="cls_token")
  # A pooler has tanh, and a projection nothing.
  activation = "torch.nn.modules.activation.ReLU"
  files.write_json(
    tmp_path / "2_Dense" / "config.json", {"activation_function": activation}
  )
  path = tmp_path / "modules.json"
  folders = ["", "1_Pooling", "2_Dense"]
  modules = [
    {"type": f"sentence_transformers.models.{kind}", "path": folder}
    for kind, folder in zip(chain, folders, strict=False)
  ]
  path.write_text(json.dumps(modules))
  with pytest.raises(ConversionError, match=said):
    read_sentence_model(tmp_path)


def test_texts_before_queries_and_blocks_become_ids(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  files.write_sentence_modules(tmp_path / "bert")
  files.write_json(
    tmp_path / "bert" / "config_sentence_transformers.json",
    {"prompts": {"query": "where was ", "passage": "the bridge "}},
  )
  pieces = files.pieces()
  where, was, bridge = (pieces.index(w) for w in ("where", "was", "bridge"))
  files.import_bert(tmp_path / "bert", tmp_path / "out", block_prefix="bridge")
  text = (tmp_path / "out" / "model.gin").read_text()
  assert f"retriever.Retriever.query_prefix = ({where}, {was})" in text
  # The flag goes before the prompt.
  assert f"retriever.Retriever.block_prefix = ({bridge},)" in text
  with pytest.raises(ConversionError, match="--query_prefix='日本'"):
    files.import_bert(tmp_path / "bert", tmp_path / "two", query_prefix="日本")


@pytest.mark.parametrize("prompts", [["query: "], {"query": 1}, "query: "])
def test_prompts_that_are_no_texts_by_name_are_refused(tmp_path, prompts):
  files.write_sentence_modules(tmp_path)
  files.write_json(
    tmp_path / "config_sentence_transformers.json", {"prompts": prompts}
  )
  with pytest.raises(ConversionError, match="want texts by name"):
    read_sentence_model(tmp_path)


def test_a_block_is_read_as_sentence_transformers_reads_its_text(tmp_path):
  weights = files.tensors()
  files.write(tmp_path / "bert", weights)
  files.write_sentence_modules(tmp_path / "bert", normalize=False)
  import_weights(
    "hf_bert",
    str(tmp_path / "bert"),
    tmp_path / "out",
    parts=["retriever"],
    block_prefix="bridge",
  )
  prefix = files.pieces().index("bridge")
  # Title and body are one text, of one type, after the prefix.
  wanted = [
    files.last_hidden(weights, ids, [0] * len(ids)).mean(0)
    for ids in ([2, prefix, 9, 11, 7, 8, 21, 3], [2, prefix, 14, 3])
  ]
  blocks = np.array([files.LONG, [2, 14, 3, 3] + [0] * 4], np.int32)
  vectors = files.vectors(tmp_path / "out", "embed_blocks", blocks)
  np.testing.assert_allclose(vectors, wanted, atol=2e-5)
