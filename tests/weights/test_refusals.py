"""Inputs that cannot be read, or do not fit, are refused in words.

A case is the format, what writes the input, and a word that must occur in the
error. Where a folder `other` is written, it is the --block_input.
"""

import numpy as np
import pytest

from realm_jax.text.wordpieces import VocabularyError
from realm_jax.weights import WeightsError, google
from tests import tiny_world
from tests.weights import models
from tests.weights import tf_files as tf

pytestmark = pytest.mark.slow

_NAME = "hf_bert/with_pooler"
_TENSORS = models.tensors(models.GOLDEN / _NAME)
_PIECES = (models.GOLDEN / _NAME / "vocab.txt").read_text().splitlines()
_UNTIED = models.tensors(models.GOLDEN / "hf_bert" / "masked_lm")
_UNTIED["cls.predictions.decoder.weight"] = np.zeros((174, 24), np.float32)


def _swapped(pieces, first=9):
  first_piece, second = pieces[first : first + 2]
  return [*pieces[:first], second, first_piece, *pieces[first + 2 :]]


def _both(*writers):
  def write(folder):
    for one in writers:
      one(folder)

  return write


def _bert(name="in", weights=None, pieces=None, **changes):
  return lambda folder: models.copy(
    _NAME, folder / name, weights, pieces, **changes
  )


def _realm(**changes):
  copy = models.copy
  return lambda folder: copy("hf_realm/embedder", folder / "in", **changes)


def _json(name, content):
  """A BERT with another JSON file."""
  return _both(
    _bert(), lambda folder: models.write_json(folder / "in" / name, content)
  )


def _modules(name="in", **settings):
  write = models.write_sentence_modules
  return lambda folder: write(folder / name, **settings)


def _of_modules(name, content):
  return _both(_json(name, content), _modules())


def _dense(**settings):
  """A chain with one module more."""
  chain = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
  content = [
    {"type": f"a.{kind}", "path": path} for path, kind in chain.items()
  ]
  return _both(
    _modules(mode="cls_token"),
    _json("2_Dense/config.json", settings),
    _json("modules.json", content),
  )


def _fast(**changes):
  """A directory whose vocabulary is in tokenizer.json."""
  vocab = {piece: i for i, piece in enumerate(_PIECES)}
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
  variables = variables or tf.bert()
  return lambda folder: tf.write_bert(folder / "in", variables, **changes)


def _module(name, variables):
  return lambda folder: tf.write_module(folder / name, variables)


def _tf_pieces(name, pieces):
  return lambda folder: tf.write_pieces(folder / name, pieces)


def _fine_tuned(folder):
  tf.write_fine_tuned(folder / "in", "module/")


def _bad_length(folder):
  _fine_tuned(folder)
  (folder / "in" / "params.json").write_text('{"reader_seq_len": "288"}')


def _of_objects(folder):
  variable = google.tf.Variable(1.0)
  (folder / "in").mkdir()
  google.tf.train.Checkpoint(x=variable).write(str(folder / "in" / "two"))


def _save(name):
  variables = {"w": np.ones(3, np.float32)}
  return lambda folder: tf.save(folder / "in" / name, variables)


_REALM_MODULE, _ICT_MODULE = (tf.embedder(**n) for n in (tf.REALM, tf.ICT))
_PROMPTS = "config_sentence_transformers.json"
_SQUAD = {"cls/squad/weights": np.zeros((2, 4), np.float32)}
_CASES = {
  "hf_bert": [
    # config.json and the weights.
    (_bert(model_type="roberta"), "roberta"),
    (_bert(model_type="dpr", projection_dim=4), "projection_dim=4"),
    (_bert(hidden_act="relu"), "relu"),
    (_bert(hidden_act=[]), r"hidden_act=\[\]"),
    (_bert(position_embedding_type="relative_key"), "relative_key"),
    (_bert(type_vocab_size=1), "type_vocab_size=1"),
    (_bert(num_attention_heads=5), "num_heads=5"),
    (_bert(hidden_size=None), "hidden_size=None"),
    (_bert(layer_norm_eps=float("nan")), "nan"),
    (_bert(intermediate_size=16), r"\[48, 24\], where .* wants \[16, 24\]"),
    (_bert(num_hidden_layers=1), r"encoder\.layer\.1\.[^\n]* \["),
    (_bert(num_hidden_layers=3), "encoder/layer_2/"),
    (_bert(weights={"w": np.ones(3)}), "no BERT"),
    (_bert(weights=_UNTIED), r"decoder\.weight .* differ"),
    (_both(_bert(), _damaged("model.safetensors")), "copy it again"),
    (_both(_bert(), _without("model.safetensors")), "shards"),
    (_both(_bert(), _without("config.json")), "cannot be read"),
    (
      _bert(
        weights={p + n: t for n, t in _TENSORS.items() for p in ("a.", "b.")}
      ),
      "'a.', 'b.'",
    ),
    # Vocabularies and tokenizers.
    (_bert(pieces=_PIECES[:-1]), "unused_row"),
    (_bert(pieces=[*_PIECES, "more"]), "another model's vocabulary"),
    (_bert(pieces=_swapped(_PIECES, 0)), r"\[PAD\]"),
    (_json("tokenizer_config.json", {"do_lower_case": False}), "cased"),
    (_json("tokenizer_config.json", {"strip_accents": False}), "strip_accents"),
    (_json("tokenizer.json", {"normalizer": {"lowercase": False}}), "cased"),
    (_fast(model=None), "model=None"),
    (_fast(model={"type": "BPE"}), "BPE"),
    (_fast(model={"type": "WordPiece", "vocab": {"a": "1"}}), "without an id"),
    (_fast(added_tokens=["[PAD]"]), "added_tokens"),
    (_fast(added_tokens=[{"id": 999, "content": "[X]"}]), "is empty"),
    # A second input.
    (_both(_bert(), _bert("other", pieces=_swapped(_PIECES))), "vocabularies"),
    (_both(_bert(), _bert("other", layer_norm_eps=1e-5)), "differ where"),
    (_both(_bert(), _bert("other"), _modules("other")), "differ where"),
    # Files of sentence-transformers.
    (_dense(activation_function="ReLU"), "ReLU"),
    (_dense(use_residual=True), "use_residual=True"),
    (_both(_bert(), _modules(mode="max_tokens")), "Pooling max"),
    (_json("modules.json", [{"path": ""}]), "chains"),
    (_json("modules.json", {}), "modules.json"),
    (_of_modules(_PROMPTS, {"prompts": ["query: "]}), "prompts"),
    (_of_modules(_PROMPTS, {"prompts": {"query": 1}}), "prompts"),
    (_of_modules("realm_jax.json", {"token_types": "yes"}), "token_types"),
    (_of_modules("realm_jax.json", {"score_scale": 0}), "score_scale"),
  ],
  "hf_realm": [
    (_realm(architectures=["RealmBert"]), "RealmBert"),
    (_realm(architectures=None), "architectures=None"),
    (_realm(model_type="bert"), "model_type='bert'"),
    (_realm(retriever_proj_size=5), r"cls\.dense\.weight \[16, 24\]"),
  ],
  "tf_bert": [
    (_tf_bert(hidden_act="relu"), "hidden_act='relu'"),
    (_tf_bert(num_hidden_layers=3), "encoder/layer_2"),
    (_tf_bert(tf.bert() | _SQUAD), r"cls/squad/weights \[2, 4\]"),
    (_bert(), "is it the right --input"),
    (
      _both(_tf_bert(), _damaged("bert_model.ckpt.data-00000-of-00001", at=5)),
      "is not read",
    ),
    (_both(_tf_bert(), _damaged("bert_model.ckpt.index")), "is not read"),
    (_of_objects, "TensorFlow 1"),
    (_both(_tf_bert(), _save("a.ckpt")), "a.ckpt, bert_model"),
  ],
  "tf_realm": [
    (_both(_fine_tuned, _without("vocab.txt")), "pass --vocab"),
    (
      _both(
        _module("in/embedder", _REALM_MODULE),
        _module("in/bert", tf.bert()),
        _tf_pieces("in/bert/assets/vocab.txt", _swapped(tiny_world.pieces())),
      ),
      "different vocabularies",
    ),
    (
      _both(
        _module("in/embedder", _REALM_MODULE),
        _module("in/bert", tf.bert(layers=1)),
      ),
      "differ where",
    ),
    (
      _both(_module("in", _REALM_MODULE), _module("other", _ICT_MODULE)),
      "differ where",
    ),
    (
      _both(_module("in/bert", tf.bert()), _module("other", _REALM_MODULE)),
      "is for a retriever",
    ),
    (
      _both(_module("in", _REALM_MODULE), _module("other", tf.bert())),
      "could be the block",
    ),
    (_bad_length, "reader_seq_len='288'"),
    (_save("a.ckpt"), "TF-Hub module of REALM"),
  ],
}


@pytest.mark.parametrize(
  ("kind", "write", "word"),
  [(kind, *case) for kind, cases in _CASES.items() for case in cases],
)
def test_an_input_is_refused(tmp_path, kind, write, word):
  write(tmp_path)
  other = tmp_path / "other"
  with pytest.raises((WeightsError, VocabularyError), match=word):
    models.read(
      kind, tmp_path / "in", block_input=other if other.exists() else None
    )


@pytest.mark.parametrize(
  ("options", "word"),
  [
    ({"input": "none"}, "is not there"),
    ({"input": "gs://bucket/bert"}, "in a bucket"),
    ({"query_prefix": "日本"}, "--query_prefix='日本'"),
    ({"ignore": ["("]}, "--ignore"),
    ({"block_input": ".", "parts": ["reader"]}, "is for a retriever"),
    ({"parts": ["writer"]}, "writer"),
    ({"block_records": "a", "index": "exact"}, "--block_records, --index with"),
    ({"vocab": "none.txt"}, "no vocabulary at"),
  ],
)
def test_a_choice_that_does_not_fit_leaves_nothing(tmp_path, options, word):
  home = models.GOLDEN / _NAME
  if "block_input" in options:
    options = {**options, "block_input": home}
  given = {"path": options.pop("input", home), **options}
  with pytest.raises((WeightsError, VocabularyError), match=word):
    models.import_weights("hf_bert", output_dir=tmp_path / "out", **given)
  assert not [*tmp_path.iterdir()]


def test_a_second_projection_is_refused():
  golden = models.GOLDEN / "hf_realm" / "embedder"
  with pytest.raises(WeightsError, match="--projection_size"):
    models.read("hf_realm", golden, projection_size=3)


@pytest.mark.parametrize("at", [None, 40])
def test_damaged_records_are_refused(tmp_path, at):
  path = tf.write_records(tmp_path / "in" / "blocks.tfr", [b"a block"] * 2000)
  _damaged("blocks.tfr", at)(tmp_path)
  with pytest.raises(WeightsError, match="whole file of TFRecords"):
    list(google.read_records(path))
