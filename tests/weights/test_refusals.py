"""Inputs that cannot be read, or do not fit, are refused in words.

Each case writes an input and returns the options of its import; the word must
occur in the error.
"""

import json

import numpy as np
import pytest

from realm_jax.text.wordpieces import VocabularyError
from realm_jax.weights import WeightsError, google
from tests.weights import hf_files as hf
from tests.weights import tf_files as tf
from tests.weights.imported import import_weights, read

pytestmark = pytest.mark.slow


def _swapped(first=9):
  pieces = hf.pieces()
  pieces[first], pieces[first + 1] = pieces[first + 1], pieces[first]
  return pieces


def _hf(word, kind="hf_bert", error=WeightsError, options=(), **changes):
  """A case of config.json."""

  def write(folder):
    weights = hf.embedder() if kind == "hf_realm" else hf.tensors()
    if kind == "hf_realm":
      hf.write_realm(
        folder / "in", weights, changes.pop("architecture", "RealmEmbedder")
      )
      path = folder / "in" / "config.json"
      hf.write_json(path, json.loads(path.read_text()) | changes)
    else:
      hf.write(folder / "in", weights, **changes)
    return dict(options)

  return pytest.param(kind, write, error, word, id=word)


def _tf(changes, word):
  def write(folder):
    tf.write_bert(folder / "in", tf.bert(), **changes)

  return pytest.param("tf_bert", write, WeightsError, word, id=word)


def _case(kind, write, word, error=WeightsError):
  return pytest.param(kind, write, error, word, id=write.__name__)


def _json(name, content, word, *, error=WeightsError, modules=False):
  """A case of another JSON file of a directory."""

  def write(folder):
    hf.write(folder / "in", hf.tensors())
    if modules:
      hf.write_sentence_modules(folder / "in")
    if name == "tokenizer.json" and "normalizer" not in content:
      (folder / "in" / "vocab.txt").unlink()
    hf.write_json(folder / "in" / name, content)

  return pytest.param("hf_bert", write, error, word, id=f"{name} {content}")


def _fast(**changes):
  vocab = {piece: i for i, piece in enumerate(hf.pieces())}
  return {"model": {"type": "WordPiece", "vocab": vocab}, **changes}


def _truncated(folder):
  path = hf.write(folder / "in", hf.tensors()) / "model.safetensors"
  path.write_bytes(path.read_bytes()[:-10])


def _in_shards(folder):
  hf.write(folder / "in", hf.tensors())
  path = folder / "in" / "model.safetensors"
  path.rename(path.with_name("model-00001-of-00001.safetensors"))
  hf.write_json(path.with_name("model.safetensors.index.json"), {})


def _no_weights(folder):
  hf.write(folder / "in", hf.tensors())
  (folder / "in" / "model.safetensors").unlink()


def _no_bert(folder):
  hf.write(folder / "in", {"w": np.ones(3, np.float32)})


def _untied(folder):
  weights = hf.tensors(prefix="bert.", head=True)
  shape = weights["bert.embeddings.word_embeddings.weight"].shape
  weights["cls.predictions.decoder.weight"] = np.zeros(shape, np.float32)
  hf.write(folder / "in", weights)


def _two_encoders(folder):
  hf.write(
    folder / "in",
    hf.tensors(prefix="query.") | hf.tensors(prefix="block.", seed=1),
  )


def _words_that_have_no_piece(folder):
  hf.write(folder / "in", hf.tensors(), vocabulary=hf.pieces()[:-1])


def _more_pieces(folder):
  hf.write(folder / "in", hf.tensors(), vocabulary=[*hf.pieces(), "more"])


def _cased(folder):
  hf.write(folder / "in", hf.tensors(), vocabulary=[*hf.pieces()[:-1], "Velt"])


def _padding_that_is_not_first(folder):
  hf.write(folder / "in", hf.tensors(), vocabulary=_swapped(0))


def _two_towers(**changes):
  def write(folder):
    hf.write(folder / "in", hf.tensors())
    hf.write(folder / "other", hf.tensors(), **changes)
    if not changes:
      hf.write_sentence_modules(folder / "other")
    return {"block_input": folder / "other"}

  return write


def _second_projection(folder):
  hf.write(folder / "in", hf.tensors())
  hf.write_sentence_modules(folder / "in", mode="cls_token", normalize=False)
  modules = json.loads((folder / "in" / "modules.json").read_text())
  modules.append({"type": "models.Dense", "path": "2_Dense"})
  hf.write_json(folder / "in" / "modules.json", modules)
  relu = {"activation_function": "torch.nn.modules.activation.ReLU"}
  hf.write_json(folder / "in" / "2_Dense" / "config.json", relu)


def _residual(folder):
  _second_projection(folder)
  residual = {"use_residual": True}
  hf.write_json(folder / "in" / "2_Dense" / "config.json", residual)


def _maximum(folder):
  hf.write(folder / "in", hf.tensors())
  hf.write_sentence_modules(folder / "in", mode="max_tokens")


def _strange_prefix(folder):
  hf.write(folder / "in", hf.tensors())
  return {"query_prefix": "日本"}


_PROMPTS = "config_sentence_transformers.json"
_HUGGING_FACE = [
  _hf("roberta", model_type="roberta"),
  _hf("projection_dim=4", model_type="dpr", projection_dim=4),
  _hf("relu", hidden_act="relu"),
  _hf("relative_key", position_embedding_type="relative_key"),
  _hf("type_vocab_size=1", type_vocab_size=1),
  _hf("num_heads=3", num_attention_heads=3),
  _hf("hidden_act=\\[\\]", hidden_act=[]),
  _hf("'wide'", hidden_size="wide"),
  _hf("hidden_size=None", hidden_size=None),
  _hf("nan", layer_norm_eps=float("nan")),
  _hf(r"\[12, 8\], where .* wants \[16, 8\]", intermediate_size=16),
  _hf(r"encoder\.layer\.1\.[^\n]* \[", num_hidden_layers=1),
  _hf("encoder/layer_2/", num_hidden_layers=3),
  _hf("--projection_size", "hf_realm", options={"projection_size": 3}),
  _hf("--block_input", "hf_realm", options={"block_input": "elsewhere"}),
  _hf("gives retriever", "hf_realm", options={"parts": ["reader"]}),
  _hf("RealmBert", "hf_realm", architectures=["RealmBert"]),
  _hf("architectures=None", "hf_realm", architectures=None),
  _hf("architectures=5", "hf_realm", architectures=5),
  _hf("model_type='bert'", "hf_realm", model_type="bert"),
  _hf(r"cls\.dense\.weight \[4, 8\]", "hf_realm", retriever_proj_size=5),
  _case("hf_bert", _truncated, "copy it again"),
  _case("hf_bert", _in_shards, "in shards"),
  _case("hf_bert", _no_weights, "no model.safetensors; it has config.json"),
  _case("hf_bert", _no_bert, "no BERT"),
  _case("hf_bert", _untied, r"decoder\.weight .* differ"),
  _case("hf_bert", _two_encoders, "'block.', 'query.'"),
  _case("hf_bert", _words_that_have_no_piece, "unused_row"),
  _case("hf_bert", _more_pieces, "another model's vocabulary"),
  _case("hf_bert", _cased, "'Velt'"),
  _case("hf_bert", _padding_that_is_not_first, "PAD", VocabularyError),
  _case("hf_bert", _two_towers(vocabulary=_swapped()), "vocabularies"),
  _case("hf_bert", _two_towers(layer_norm_eps=1e-5), "configuration"),
  _case("hf_bert", _two_towers(), "different ways"),
  _case("hf_bert", _second_projection, "ReLU"),
  _case("hf_bert", _residual, "use_residual=True"),
  _case("hf_bert", _maximum, "pooling_mode_max_tokens"),
  _case("hf_bert", _strange_prefix, "--query_prefix='日本'"),
  *(
    _json(_PROMPTS, {"prompts": prompts}, "prompts", modules=True)
    for prompts in (["query: "], {"query": 1}, "query: ")
  ),
  *(
    _json("realm_jax.json", {name: value}, name, modules=True)
    for name, value in (
      ("token_types", "yes"),
      ("projection_scale", 0),
      ("colour", 1),
    )
  ),
  _json("modules.json", [{"path": ""}], "modules with type"),
  _json("tokenizer_config.json", {"do_lower_case": False}, "cased"),
  _json("tokenizer_config.json", {"strip_accents": False}, "strip_accents"),
  _json("tokenizer.json", {"normalizer": {"lowercase": False}}, "cased"),
  *(
    _json("tokenizer.json", content, "want")
    for content in (
      {"model": None},
      {"model": {"type": "WordPiece"}},
      {"model": {"type": "WordPiece", "vocab": {"a": "1"}}},
      _fast(added_tokens=[{"content": "[PAD]"}]),
      _fast(added_tokens=["[PAD]"]),
      _fast(added_tokens=[{"id": 0, "content": None}]),
      _fast(added_tokens=5),
      _fast(added_tokens=[{"id": 999, "content": "[X]"}]),
    )
  ),
]


# --- Google ---------------------------------------------------------------


def _leftover_and_missing(folder):
  variables = tf.bert()
  variables["cls/squad/output_weights"] = np.zeros((2, 4), np.float32)
  tf.write_bert(folder / "in", variables)


def _no_checkpoint(folder):
  (folder / "in").mkdir()


def _damaged(folder):
  tf.write_bert(folder / "in", tf.bert())
  path = folder / "in" / "bert_model.ckpt.data-00000-of-00001"
  changed = bytearray(path.read_bytes())
  changed[5] ^= 1
  path.write_bytes(changed)


def _cut(folder):
  tf.write_bert(folder / "in", tf.bert())
  path = folder / "in" / "bert_model.ckpt.index"
  path.write_bytes(path.read_bytes()[:-12])


def _of_objects(folder):
  (folder / "in").mkdir()
  variable = google.tf.Variable(1.0)
  google.tf.train.Checkpoint(x=variable).write(str(folder / "in" / "two"))


def _two_checkpoints(folder):
  tf.write_bert(folder / "in", tf.bert())
  tf.save(folder / "in" / "another.ckpt", {"w": np.ones(3, np.float32)})


def _cased_realm(folder):
  tf.write_retriever(folder / "in", **tf.REALM)
  pieces = [*tf.pieces()[:-1], "Velt"]
  tf.write_pieces(folder / "in" / "assets" / "vocab.txt", pieces)


def _without_vocabulary(folder):
  tf.write_fine_tuned(folder / "in", embedder_scope="module/")
  (folder / "in" / "vocab.txt").unlink()


def _short_vocabulary(folder):
  _without_vocabulary(folder)
  tf.write_pieces(folder / "short.txt", tf.pieces()[:-1])
  return {"vocab": str(folder / "short.txt")}


def _two_vocabularies(folder):
  tf.write_retriever(folder / "in" / "embedder", **tf.REALM)
  tf.write_module(folder / "in" / "bert", tf.bert())
  path = folder / "in" / "bert" / "assets" / "vocab.txt"
  tf.write_pieces(path, _swapped())


def _two_sizes(folder):
  tf.write_retriever(folder / "in" / "embedder", **tf.REALM)
  tf.write_module(folder / "in" / "bert", tf.bert(layers=1))


def _two_projections(folder):
  tf.write_retriever(folder / "in", **tf.REALM)
  tf.write_retriever(folder / "other", **tf.ICT)
  return {"block_input": folder / "other"}


def _block_tower_alone(folder):
  tf.write_retriever(folder / "other", **tf.REALM)
  tf.write_module(folder / "in" / "bert", tf.bert())
  return {"block_input": folder / "other"}


def _block_input_that_is_a_reader(folder):
  tf.write_retriever(folder / "in", **tf.REALM)
  tf.write_module(folder / "other", tf.bert())
  return {"block_input": folder / "other"}


def _bad_length(folder):
  tf.write_fine_tuned(folder / "in", embedder_scope="module/")
  (folder / "in" / "params.json").write_text('{"reader_seq_len": "288"}')


def _useless_flag(folder):
  tf.write_retriever(folder / "in", **tf.REALM)
  return {"pooling": "mean"}


def _no_reader(folder):
  tf.write_retriever(folder / "in", **tf.REALM)
  return {"parts": ["reader"]}


def _no_realm(folder):
  tf.save(folder / "in" / "model.ckpt", {"w": np.ones(3, np.float32)})


_GOOGLE = [
  _tf({"hidden_act": "relu"}, "hidden_act='relu'"),
  _tf({"type_vocab_size": 16}, "type_vocab_size=16"),
  _tf({"num_hidden_layers": 3}, "encoder/layer_2"),
  _case("tf_bert", _leftover_and_missing, r"cls/squad/output_weights \[2, 4\]"),
  _case("tf_bert", _no_checkpoint, "is it the right --input"),
  _case("tf_bert", _damaged, "is not read"),
  _case("tf_bert", _cut, "is not read"),
  _case("tf_bert", _of_objects, "TensorFlow 2 checkpoint"),
  _case("tf_bert", _two_checkpoints, "another.ckpt, bert_model.ckpt"),
  _case("tf_bert", _no_realm, "bert_config.json"),
  _case("tf_realm", _cased_realm, "'Velt'"),
  _case("tf_realm", _without_vocabulary, "pass --vocab"),
  _case("tf_realm", _short_vocabulary, "word embeddings"),
  _case("tf_realm", _two_vocabularies, "different vocabularies"),
  _case("tf_realm", _two_sizes, "different configuration"),
  _case("tf_realm", _two_projections, "project differently"),
  _case("tf_realm", _block_tower_alone, "is for a retriever"),
  _case("tf_realm", _block_input_that_is_a_reader, "could embed blocks"),
  _case("tf_realm", _bad_length, "reader_seq_len='288'"),
  _case("tf_realm", _useless_flag, "--pooling"),
  _case("tf_realm", _no_reader, "gives retriever"),
  _case("tf_realm", _no_realm, "TF-Hub module of REALM"),
]


@pytest.mark.parametrize(
  ("kind", "write", "error", "word"), [*_HUGGING_FACE, *_GOOGLE]
)
def test_it_is_refused(tmp_path, kind, write, error, word):
  options = write(tmp_path) or {}
  with pytest.raises(error, match=word):
    read(kind, tmp_path / "in", **options)


def test_nothing_is_written(tmp_path):
  hf.write(tmp_path / "in", hf.tensors(), num_hidden_layers=3)
  with pytest.raises(WeightsError):
    import_weights("hf_bert", tmp_path / "in", tmp_path / "out")
  with pytest.raises(WeightsError, match="is not there"):
    import_weights("hf_bert", tmp_path / "none", tmp_path / "out")
  with pytest.raises(WeightsError, match="in a bucket"):
    import_weights("hf_bert", "gs://bucket/bert", tmp_path / "out")
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_records_are_refused(tmp_path, damage):
  path = tf.write_records(tmp_path / "blocks.tfr", [b"a block"] * 2000)
  content = bytearray(path.read_bytes())
  if damage == "cut":
    del content[-5:]
  else:
    content[40] ^= 1
  path.write_bytes(content)
  with pytest.raises(WeightsError, match="whole file of TFRecords"):
    list(google.TfRecords(path))
