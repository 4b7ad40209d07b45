"""BERT directories: vectors and logits are those of the weights at home."""

import functools
import json
import math

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.importing import import_weights
from realm_jax.text.wordpieces import VocabularyError
from tests.conversion import hf_bert_files as files
from tests.conversion.imported import load

# `[CLS] … [SEP] … [SEP]`, and a shorter one that is padded.
_LONG = [2, 9, 11, 3, 7, 8, 21, 3]
_SHORT = [2, 14, 3]
_BATCH = np.array([_LONG, _SHORT + [0] * 5], np.int32)


def _import(directory, output_dir, **options):
  # Where nothing else is said: what REALM's towers read, and no reader.
  usual = {"title_separator": True, "token_types": True, "parts": ["retriever"]}
  options = usual | options
  return import_weights("hf_bert", str(directory), output_dir, **options)


def _vectors(model_dir, method="embed_queries", batch=_BATCH):
  model = load(model_dir)
  embed = jax.jit(functools.partial(model.retriever.apply, method=method))
  return np.asarray(embed({"params": model.params["retriever"]}, batch))


def _types(token_ids):
  first = token_ids.index(files.SEP)
  return [int(i > first) for i in range(len(token_ids))]


def _hidden(weights, prefix=""):
  return [
    files.last_hidden(weights, row, _types(row), prefix=prefix)
    for row in (_LONG, _SHORT)
  ]


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean"])
def test_the_vectors_are_those_of_the_weights(tmp_path, pooling):
  weights = files.tensors()
  files.write(tmp_path / "bert", weights)
  _import(tmp_path / "bert", tmp_path / "out", pooling=pooling)
  wanted = []
  for hidden in _hidden(weights):
    if pooling == "mean":
      wanted.append(hidden.mean(0))
    elif pooling == "cls":
      wanted.append(hidden[0])
    else:
      kernel, bias = (weights[f"pooler.dense.{n}"] for n in ("weight", "bias"))
      wanted.append(np.tanh(hidden[0] @ kernel.T + bias))
  np.testing.assert_allclose(_vectors(tmp_path / "out"), wanted, atol=2e-5)


def test_the_pooler_is_taken_where_there_is_one(tmp_path):
  files.write(tmp_path / "with", files.tensors())
  files.write(tmp_path / "without", files.tensors(pooler=False))
  report = _import(tmp_path / "with", tmp_path / "one")
  assert "pooling: pooler" in report
  assert load(tmp_path / "one").retriever.pooling == "pooler"
  report = _import(tmp_path / "without", tmp_path / "two")
  assert "pooling: cls" in report
  assert load(tmp_path / "two").retriever.pooling == "cls"


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
  _import(tmp_path / "bert", tmp_path / "out", pooling="cls")
  wanted = [hidden[0] for hidden in _hidden(weights, prefix)]
  np.testing.assert_allclose(_vectors(tmp_path / "out"), wanted, atol=2e-5)


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
    _import(tmp_path / name, tmp_path / f"{name}_out")
  new, old = (load(tmp_path / f"{name}_out").params for name in ("new", "old"))
  jax.tree.map(np.testing.assert_array_equal, new, old)


@pytest.mark.parametrize("decoder", ["absent", "tied"])
def test_masked_words_are_predicted_as_at_home(tmp_path, decoder):
  weights = files.tensors(prefix="bert.", head=True)
  words = weights["bert.embeddings.word_embeddings.weight"]
  if decoder == "tied":
    weights["cls.predictions.decoder.weight"] = words.copy()
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
  weights["cls.seq_relationship.weight"] = np.zeros((2, 8), np.float32)
  files.write(tmp_path / "bert", weights)
  both = ["retriever", "reader"]
  report = _import(tmp_path / "bert", tmp_path / "out", parts=both)
  assert "cls.seq_relationship.weight [2, 8]: of the next-sentence" in report
  assert "reader/span_head/projection/kernel [8, 512]" in report
  assert "reader/masked_lm_head/bias" not in report.partition("afresh")[2]

  model = load(tmp_path / "out")
  query = np.array([[2, 9, 4, 3]], np.int32)
  block = np.array([[[2, 10, 3, 7, 8, 3]]], np.int32)
  read = functools.partial(model.reader.apply, method="masked_lm")
  logits = jax.jit(read)(
    {"params": model.params["reader"]},
    query,
    block,
    np.array([[2]], np.int32),
  )
  # The reader joins the query with the block's body alone.
  joined = [2, 9, 4, 3, 7, 8, 3]
  hidden = files.last_hidden(weights, joined, _types(joined), prefix="bert.")
  head = "cls.predictions.transform"
  x = hidden[2] @ weights[f"{head}.dense.weight"].T
  x = x + weights[f"{head}.dense.bias"]
  x = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
  x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
  x = (
    x * weights[f"{head}.LayerNorm.weight"] + weights[f"{head}.LayerNorm.bias"]
  )
  wanted = x @ words.T + weights["cls.predictions.bias"]
  np.testing.assert_allclose(np.asarray(logits)[0, 0, 0], wanted, atol=2e-5)


def test_an_untied_decoder_is_refused_by_name(tmp_path):
  weights = files.tensors(prefix="bert.", head=True)
  shape = weights["bert.embeddings.word_embeddings.weight"].shape
  weights["cls.predictions.decoder.weight"] = np.zeros(shape, np.float32)
  files.write(tmp_path / "bert", weights)
  with pytest.raises(ConversionError, match=r"decoder\.weight .* differ"):
    _import(tmp_path / "bert", tmp_path / "out", parts=["reader"])
  assert not (tmp_path / "out").exists()
  # A retriever has no head, so nothing of it is looked at.
  report = _import(tmp_path / "bert", tmp_path / "out")
  assert "cls.predictions.decoder.weight" in report.partition("left")[2]


def test_half_a_head_is_refused_by_name(tmp_path):
  weights = files.tensors(prefix="bert.", head=True)
  del weights["cls.predictions.bias"]
  files.write(tmp_path / "bert", weights)
  with pytest.raises(ConversionError, match=r"reader/masked_lm_head/bias \["):
    _import(tmp_path / "bert", tmp_path / "out", parts=["reader"])


def test_the_shards_of_an_index_are_read_as_one_file(tmp_path):
  weights = files.tensors()
  files.write(tmp_path / "whole", weights)
  files.write(tmp_path / "shards", weights)
  (tmp_path / "shards" / "model.safetensors").unlink()
  names = sorted(weights)
  shards = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
  for file, part in shards.items():
    safetensors.numpy.save_file(
      {name: weights[name] for name in part}, tmp_path / "shards" / file
    )
  index = {name: file for file, part in shards.items() for name in part}
  files.write_json(
    tmp_path / "shards" / "model.safetensors.index.json", {"weight_map": index}
  )
  for name in ("whole", "shards"):
    _import(tmp_path / name, tmp_path / f"{name}_out")
  np.testing.assert_array_equal(
    _vectors(tmp_path / "whole_out"), _vectors(tmp_path / "shards_out")
  )
  (tmp_path / "shards" / "b.safetensors").unlink()
  with pytest.raises(ConversionError, match=r"b\.safetensors"):
    _import(tmp_path / "shards", tmp_path / "another")


def test_weights_in_bfloat16_become_the_same_numbers_in_float32(tmp_path):
  halves = {
    name: array.astype(ml_dtypes.bfloat16)
    for name, array in files.tensors().items()
  }
  files.write(tmp_path / "bert", halves)
  _import(tmp_path / "bert", tmp_path / "out")
  words = load(tmp_path / "out").params["retriever"]["tower"]["encoder"][
    "word_embeddings"
  ]
  assert words.dtype == np.float32
  np.testing.assert_array_equal(
    words, halves["embeddings.word_embeddings.weight"].astype(np.float32)
  )


def test_two_towers_start_from_one_directory_or_from_two(tmp_path):
  one, two = files.tensors(), files.tensors(seed=1)
  files.write(tmp_path / "one", one)
  files.write(tmp_path / "two", two)
  settings = {"pooling": "cls"}
  _import(tmp_path / "one", tmp_path / "same", separate_towers=True, **settings)
  assert load(tmp_path / "same").params["retriever"].keys() == {
    "query_tower",
    "block_tower",
  }
  np.testing.assert_array_equal(
    _vectors(tmp_path / "same"), _vectors(tmp_path / "same", "embed_blocks")
  )
  _import(
    tmp_path / "one",
    tmp_path / "dpr",
    block_input=str(tmp_path / "two"),
    **settings,
  )
  for weights, method in ((one, "embed_queries"), (two, "embed_blocks")):
    wanted = [hidden[0] for hidden in _hidden(weights)]
    np.testing.assert_allclose(
      _vectors(tmp_path / "dpr", method), wanted, atol=2e-5
    )


def test_a_projection_starts_afresh_and_alike_in_both_towers(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  report = _import(
    tmp_path / "bert",
    tmp_path / "out",
    projection_size=4,
    separate_towers=True,
  )
  assert "block_tower/projection/kernel [8, 4]: --projection_size" in report
  assert _vectors(tmp_path / "out").shape == (2, 4)
  np.testing.assert_array_equal(
    _vectors(tmp_path / "out"), _vectors(tmp_path / "out", "embed_blocks")
  )


@pytest.mark.parametrize("normalize", [True, False])
def test_sentence_transformers_modules_are_followed(tmp_path, normalize):
  weights = files.tensors()
  files.write(tmp_path / "bert", weights)
  files.write_sentence_modules(tmp_path / "bert", normalize=normalize)
  _import(tmp_path / "bert", tmp_path / "out", score_scale=20.0)
  retriever = load(tmp_path / "out").retriever
  assert (retriever.pooling, retriever.normalize) == ("mean", normalize)
  assert retriever.score_scale == 20.0
  wanted = np.stack([hidden.mean(0) for hidden in _hidden(weights)])
  if normalize:
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
  np.testing.assert_allclose(_vectors(tmp_path / "out"), wanted, atol=2e-5)


def test_a_flag_goes_before_the_modules(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  files.write_sentence_modules(tmp_path / "bert", mode="cls_token")
  _import(tmp_path / "bert", tmp_path / "one")
  assert load(tmp_path / "one").retriever.pooling == "cls"
  _import(tmp_path / "bert", tmp_path / "two", pooling="mean", normalize=False)
  retriever = load(tmp_path / "two").retriever
  assert (retriever.pooling, retriever.normalize) == ("mean", False)


def test_the_vocabulary_may_come_from_tokenizer_json(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  (tmp_path / "bert" / "vocab.txt").unlink()
  pieces = files.pieces()
  files.write_json(
    tmp_path / "bert" / "tokenizer.json",
    {
      "normalizer": {"type": "BertNormalizer", "lowercase": True},
      "added_tokens": [{"id": 0, "content": "[PAD]"}],
      "model": {
        "type": "WordPiece",
        "continuing_subword_prefix": "##",
        # In another order than that of the ids.
        "vocab": {piece: i for i, piece in reversed(list(enumerate(pieces)))},
      },
    },
  )
  _import(tmp_path / "bert", tmp_path / "out")
  written = (tmp_path / "out" / "vocab.txt").read_text(encoding="utf-8")
  assert written.splitlines() == pieces


def test_the_model_file_says_what_the_weights_depend_on(tmp_path):
  files.write(
    tmp_path / "bert",
    files.tensors(),
    hidden_act="gelu_new",
    layer_norm_eps=1e-5,
  )
  _import(tmp_path / "bert", tmp_path / "out")
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
    _import(tmp_path / "bert", tmp_path / "out")
  assert [p.name for p in tmp_path.iterdir()] == ["bert"]


@pytest.mark.parametrize(
  ("file", "content", "said"),
  [
    ("tokenizer_config.json", {"do_lower_case": False}, "cased"),
    (
      "tokenizer.json",
      {"normalizer": {"type": "BertNormalizer", "lowercase": False}},
      "cased",
    ),
    ("tokenizer_config.json", {"strip_accents": False}, "accents"),
  ],
)
def test_a_cased_model_is_refused(tmp_path, file, content, said):
  files.write(tmp_path / "bert", files.tensors())
  files.write_json(tmp_path / "bert" / file, content)
  with pytest.raises(ConversionError, match=said):
    _import(tmp_path / "bert", tmp_path / "out")


def test_lower_casing_is_the_tokenizers_not_the_sentence_models(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  files.write_sentence_modules(tmp_path / "bert")
  files.write_json(
    tmp_path / "bert" / "sentence_bert_config.json",
    {"max_seq_length": 32, "do_lower_case": False},
  )
  files.write_json(
    tmp_path / "bert" / "tokenizer_config.json", {"do_lower_case": True}
  )
  report = _import(tmp_path / "bert", tmp_path / "out")
  assert "the first 32 tokens" in report


@pytest.mark.parametrize(
  ("chain", "said"),
  [
    (["Transformer", "Pooling", "Dense"], "Dense"),
    (["WordEmbeddings", "Pooling"], "WordEmbeddings"),
  ],
)
def test_other_modules_are_refused(tmp_path, chain, said):
  files.write(tmp_path / "bert", files.tensors())
  files.write_sentence_modules(tmp_path / "bert")
  path = tmp_path / "bert" / "modules.json"
  folders = ["", "1_Pooling", "2_Dense"]
  modules = [
    {"type": f"sentence_transformers.models.{kind}", "path": folder}
    for kind, folder in zip(chain, folders, strict=False)
  ]
  path.write_text(json.dumps(modules))
  with pytest.raises(ConversionError, match=said):
    _import(tmp_path / "bert", tmp_path / "out")


def test_max_pooling_is_refused(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  files.write_sentence_modules(tmp_path / "bert", mode="max_tokens")
  with pytest.raises(ConversionError, match="pooling_mode_max_tokens"):
    _import(tmp_path / "bert", tmp_path / "out")


def test_several_encoders_want_a_choice(tmp_path):
  weights = files.tensors(prefix="query.")
  weights |= files.tensors(prefix="block.", seed=1)
  files.write(tmp_path / "bert", weights)
  with pytest.raises(ConversionError, match=r"'block\.', 'query\.'"):
    _import(tmp_path / "bert", tmp_path / "out")
  _import(
    tmp_path / "bert",
    tmp_path / "out",
    tensor_prefix="query.",
    allow_left=[r"block\..*"],
    pooling="cls",
  )
  wanted = [hidden[0] for hidden in _hidden(weights, "query.")]
  np.testing.assert_allclose(_vectors(tmp_path / "out"), wanted, atol=2e-5)


def test_a_truncated_file_is_refused(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  path = tmp_path / "bert" / "model.safetensors"
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(ConversionError, match="cannot be read"):
    _import(tmp_path / "bert", tmp_path / "out")


def test_a_directory_without_weights_says_what_it_has(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  (tmp_path / "bert" / "model.safetensors").unlink()
  with pytest.raises(ConversionError, match=r"no model\.safetensors.*vocab"):
    _import(tmp_path / "bert", tmp_path / "out")
  with pytest.raises(ConversionError, match="no local directory"):
    _import(tmp_path / "nowhere", tmp_path / "out")


def test_a_pickle_is_not_read_without_torch(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  weights = tmp_path / "bert" / "model.safetensors"
  weights.rename(tmp_path / "bert" / "pytorch_model.bin")
  with pytest.raises(ConversionError, match=r"is a pickle.*model\.safetensors"):
    _import(tmp_path / "bert", tmp_path / "out")


def test_a_vocabulary_whose_padding_is_not_0_is_refused(tmp_path):
  pieces = files.pieces()
  pieces[0], pieces[1] = pieces[1], pieces[0]
  files.write(tmp_path / "bert", files.tensors(), vocabulary=pieces)
  with pytest.raises(VocabularyError, match=r"\[PAD\] must be there"):
    _import(tmp_path / "bert", tmp_path / "out")


def test_texts_before_queries_and_blocks_become_ids(tmp_path):
  files.write(tmp_path / "bert", files.tensors())
  files.write_sentence_modules(tmp_path / "bert")
  files.write_json(
    tmp_path / "bert" / "config_sentence_transformers.json",
    {"prompts": {"query": "where was ", "passage": "the bridge "}},
  )
  pieces = files.pieces()
  where, was, bridge = (pieces.index(w) for w in ("where", "was", "bridge"))
  _import(tmp_path / "bert", tmp_path / "out", block_prefix="bridge")
  text = (tmp_path / "out" / "model.gin").read_text()
  assert f"retriever.Retriever.query_prefix = ({where}, {was})" in text
  # The flag goes before the prompt.
  assert f"retriever.Retriever.block_prefix = ({bridge},)" in text
  with pytest.raises(ConversionError, match="--query_prefix='日本'"):
    _import(tmp_path / "bert", tmp_path / "two", query_prefix="日本")


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
  blocks = np.array([_LONG, [2, 14, 3, 3] + [0] * 4], np.int32)
  vectors = _vectors(tmp_path / "out", "embed_blocks", blocks)
  np.testing.assert_allclose(vectors, wanted, atol=2e-5)


def test_the_weights_may_lie_in_a_folder_of_their_own(tmp_path):
  weights = files.tensors()
  files.write(tmp_path / "bert" / "0_Transformer", weights)
  files.write_sentence_modules(tmp_path / "bert", folder="0_Transformer")
  _import(tmp_path / "bert", tmp_path / "out", normalize=False)
  wanted = [hidden.mean(0) for hidden in _hidden(weights)]
  np.testing.assert_allclose(_vectors(tmp_path / "out"), wanted, atol=2e-5)


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
      _import(
        tmp_path / "one",
        tmp_path / "out",
        block_input=str(tmp_path / name),
      )
