"""Inputs that cannot be read, or do not fit, are refused in words.

A case is the format, what writes the input, options of the import, in which
`other` is a second input, and a word that must occur in the error.
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

_W = {"w": np.ones(3, np.float32)}
_UNTIED = hf.tensors(prefix="bert.", head=True)
_UNTIED["cls.predictions.decoder.weight"] = np.zeros(
  _UNTIED["bert.embeddings.word_embeddings.weight"].shape, np.float32
)


def _swapped(first=9):
  pieces = hf.pieces()
  pieces[first], pieces[first + 1] = pieces[first + 1], pieces[first]
  return pieces


def _both(*writers):
  def write(folder):
    for one in writers:
      one(folder)

  return write


def _bert(name="in", weights=None, **changes):
  weights = hf.tensors() if weights is None else weights
  return lambda folder: hf.write(folder / name, weights, **changes)


def _realm(**changes):
  def write(folder):
    hf.write_realm(folder / "in", hf.embedder(), "RealmEmbedder")
    path = folder / "in" / "config.json"
    hf.write_json(path, json.loads(path.read_text()) | changes)

  return write


def _json(name, content):
  """A BERT with another JSON file."""
  return _both(
    _bert(), lambda folder: hf.write_json(folder / "in" / name, content)
  )


def _modules(name="in", **settings):
  return lambda folder: hf.write_sentence_modules(folder / name, **settings)


def _of_modules(name, content):
  return _both(_json(name, content), _modules())


def _dense(**settings):
  """A chain with one module more."""
  chain = [
    ("Transformer", ""),
    ("Pooling", "1_Pooling"),
    ("Dense", "2_Dense"),
  ]
  content = [{"type": f"models.{kind}", "path": path} for kind, path in chain]
  return _both(
    _bert(),
    _modules(mode="cls_token"),
    _json("2_Dense/config.json", settings),
    lambda folder: hf.write_json(folder / "in" / "modules.json", content),
  )


def _fast(**changes):
  """A directory whose vocabulary is in tokenizer.json."""
  vocab = {piece: i for i, piece in enumerate(hf.pieces())}
  content = {"model": {"type": "WordPiece", "vocab": vocab}, **changes}
  return _both(_json("tokenizer.json", content), _without("vocab.txt"))


def _without(name):
  return lambda folder: (folder / "in" / name).unlink()


def _damaged(name, at=None):
  """Cuts the end of a file, or changes a byte."""

  def damage(folder):
    path = folder / "in" / name
    content = bytearray(path.read_bytes())
    if at is None:
      del content[-5:]
    else:
      content[at] ^= 1
    path.write_bytes(content)

  return damage


def _tf_bert(variables=None, **changes):
  variables = tf.bert() if variables is None else variables
  return lambda folder: tf.write_bert(folder / "in", variables, **changes)


def _retriever(name="in", names=tf.REALM):
  return lambda folder: tf.write_retriever(folder / name, **names)


def _module(name, **settings):
  return lambda folder: tf.write_module(folder / name, tf.bert(**settings))


def _tf_pieces(name, pieces):
  return lambda folder: tf.write_pieces(folder / name, pieces)


def _fine_tuned(folder):
  tf.write_fine_tuned(folder / "in", embedder_scope="module/")


def _bad_length(folder):
  _fine_tuned(folder)
  (folder / "in" / "params.json").write_text('{"reader_seq_len": "288"}')


def _of_objects(folder):
  variable = google.tf.Variable(1.0)
  checkpoint = google.tf.train.Checkpoint(x=variable)
  (folder / "in").mkdir()
  checkpoint.write(str(folder / "in" / "two"))


def _save(name):
  return lambda folder: tf.save(folder / "in" / name, _W)


_TWO = {"block_input": "other"}
_PROMPTS = "config_sentence_transformers.json"
_SHARDS = "model.safetensors.index.json"
_LEFT = tf.bert() | {"cls/squad/weights": np.zeros((2, 4), np.float32)}
_CASED = [*hf.pieces()[:-1], "Velt"]
_CASES = [
  # config.json and the weights.
  *(
    ("hf_bert", _bert(**changes), {}, word)
    for changes, word in (
      ({"model_type": "roberta"}, "roberta"),
      ({"model_type": "dpr", "projection_dim": 4}, "projection_dim=4"),
      ({"hidden_act": "relu"}, "relu"),
      ({"hidden_act": []}, r"hidden_act=\[\]"),
      ({"position_embedding_type": "relative_key"}, "relative_key"),
      ({"type_vocab_size": 1}, "type_vocab_size=1"),
      ({"num_attention_heads": 3}, "num_heads=3"),
      ({"hidden_size": "wide"}, "'wide'"),
      ({"hidden_size": None}, "hidden_size=None"),
      ({"layer_norm_eps": float("nan")}, "nan"),
      ({"intermediate_size": 16}, r"\[12, 8\], where .* wants \[16, 8\]"),
      ({"num_hidden_layers": 1}, r"encoder\.layer\.1\.[^\n]* \["),
      ({"num_hidden_layers": 3}, "encoder/layer_2/"),
      ({"vocabulary": hf.pieces()[:-1]}, "unused_row"),
      ({"vocabulary": [*hf.pieces(), "more"]}, "another model's vocabulary"),
      ({"vocabulary": _CASED}, "capitals"),
      ({"vocabulary": _swapped(0)}, r"\[PAD\]"),
      ({"weights": _W}, "no BERT"),
      ({"weights": _UNTIED}, r"decoder\.weight .* differ"),
    )
  ),
  (
    "hf_bert",
    _both(_bert(), _damaged("model.safetensors")),
    {},
    "copy it again",
  ),
  (
    "hf_bert",
    _both(_json(_SHARDS, {}), _without("model.safetensors")),
    {},
    "in shards",
  ),
  (
    "hf_bert",
    _both(_bert(), _without("model.safetensors")),
    {},
    "no model.safetensors; it has config.json",
  ),
  (
    "hf_bert",
    _bert(weights=hf.tensors(prefix="a.") | hf.tensors(prefix="b.")),
    {},
    "'a.', 'b.'",
  ),
  ("hf_bert", _bert(), {"query_prefix": "日本"}, "--query_prefix='日本'"),
  ("hf_bert", _bert(), {"ignore": ["("]}, "--ignore"),
  *(
    ("hf_bert", _both(_bert(), other), _TWO, word)
    for other, word in (
      (_bert("other", vocabulary=_swapped()), "vocabularies"),
      (_bert("other", layer_norm_eps=1e-5), "differ where"),
      (_both(_bert("other"), _modules("other")), "differ where"),
    )
  ),
  # Files of sentence-transformers.
  ("hf_bert", _dense(activation_function="ReLU"), {}, "ReLU"),
  ("hf_bert", _dense(use_residual=True), {}, "use_residual=True"),
  (
    "hf_bert",
    _both(_bert(), _modules(mode="max_tokens")),
    {},
    "Pooling max",
  ),
  ("hf_bert", _json("modules.json", [{"path": ""}]), {}, "chains"),
  *(
    ("hf_bert", _of_modules(_PROMPTS, {"prompts": prompts}), {}, "prompts")
    for prompts in (["query: "], {"query": 1})
  ),
  *(
    ("hf_bert", _of_modules("realm_jax.json", {name: value}), {}, name)
    for name, value in (
      ("token_types", "yes"),
      ("projection_scale", 0),
    )
  ),
  # Tokenizers.
  *(
    ("hf_bert", _json("tokenizer_config.json", {name: False}), {}, name)
    for name in ("do_lower_case", "strip_accents")
  ),
  (
    "hf_bert",
    _json("tokenizer.json", {"normalizer": {"lowercase": False}}),
    {},
    "cased",
  ),
  *(
    ("hf_bert", _fast(**changes), {}, word)
    for changes, word in (
      ({"model": None}, "model=None"),
      ({"model": {"type": "WordPiece", "vocab": {"a": "1"}}}, "without an id"),
      ({"added_tokens": ["[PAD]"]}, "added_tokens"),
      ({"added_tokens": [{"id": 999, "content": "[X]"}]}, "is empty"),
    )
  ),
  # transformers' REALM.
  ("hf_realm", _realm(), {"projection_size": 3}, "--projection_size"),
  ("hf_realm", _realm(), {"parts": ["reader"]}, "gives retriever"),
  *(
    ("hf_realm", _realm(**changes), {}, word)
    for changes, word in (
      ({"architectures": ["RealmBert"]}, "RealmBert"),
      ({"architectures": None}, "architectures=None"),
      ({"model_type": "bert"}, "model_type='bert'"),
      ({"retriever_proj_size": 5}, r"cls\.dense\.weight \[4, 8\]"),
    )
  ),
  # Google's BERT.
  ("tf_bert", _tf_bert(hidden_act="relu"), {}, "hidden_act='relu'"),
  ("tf_bert", _tf_bert(type_vocab_size=16), {}, "type_vocab_size=16"),
  ("tf_bert", _tf_bert(num_hidden_layers=3), {}, "encoder/layer_2"),
  ("tf_bert", _tf_bert(_LEFT), {}, r"cls/squad/weights \[2, 4\]"),
  ("tf_bert", _bert(), {}, "is it the right --input"),
  (
    "tf_bert",
    _both(_tf_bert(), _damaged("bert_model.ckpt.data-00000-of-00001", at=5)),
    {},
    "is not read",
  ),
  (
    "tf_bert",
    _both(_tf_bert(), _damaged("bert_model.ckpt.index")),
    {},
    "is not read",
  ),
  ("tf_bert", _of_objects, {}, "TensorFlow 1"),
  ("tf_bert", _both(_tf_bert(), _save("a.ckpt")), {}, "a.ckpt, bert_model"),
  ("tf_bert", _save("a.ckpt"), {}, "bert_config.json"),
  # Google's REALM and ORQA.
  (
    "tf_realm",
    _both(_retriever(), _tf_pieces("in/assets/vocab.txt", _CASED)),
    {},
    "capitals",
  ),
  ("tf_realm", _both(_fine_tuned, _without("vocab.txt")), {}, "pass --vocab"),
  (
    "tf_realm",
    _both(_fine_tuned, _tf_pieces("other", tf.pieces()[:-1])),
    {"vocab": "other"},
    "word embeddings",
  ),
  (
    "tf_realm",
    _both(
      _retriever("in/embedder"),
      _module("in/bert"),
      _tf_pieces("in/bert/assets/vocab.txt", _swapped()),
    ),
    {},
    "different vocabularies",
  ),
  (
    "tf_realm",
    _both(_retriever("in/embedder"), _module("in/bert", layers=1)),
    {},
    "differ where",
  ),
  (
    "tf_realm",
    _both(_retriever(), _retriever("other", tf.ICT)),
    _TWO,
    "differ where",
  ),
  (
    "tf_realm",
    _both(_retriever("other"), _module("in/bert")),
    _TWO,
    "is for a retriever",
  ),
  (
    "tf_realm",
    _both(_retriever(), _module("other")),
    _TWO,
    "could be the block",
  ),
  ("tf_realm", _bad_length, {}, "reader_seq_len='288'"),
  ("tf_realm", _retriever(), {"parts": ["reader"]}, "gives retriever"),
  ("tf_realm", _save("a.ckpt"), {}, "TF-Hub module of REALM"),
]


@pytest.mark.parametrize(("kind", "write", "options", "word"), _CASES)
def test_it_is_refused(tmp_path, kind, write, options, word):
  write(tmp_path)
  for name in ("block_input", "vocab"):
    if name in options:
      options = {**options, name: tmp_path / options[name]}
  with pytest.raises((WeightsError, VocabularyError), match=word):
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


@pytest.mark.parametrize("at", [None, 40])
def test_damaged_records_are_refused(tmp_path, at):
  path = tf.write_records(tmp_path / "in" / "blocks.tfr", [b"a block"] * 2000)
  _damaged("blocks.tfr", at)(tmp_path)
  with pytest.raises(WeightsError, match="whole file of TFRecords"):
    list(google.read_records(path))
