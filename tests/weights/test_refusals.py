"""Inputs that cannot be read, or do not fit, are refused in words.

A case is the format, what writes the input, and a word that must occur in the
error. Where a folder `other` is written, it is the --block_input.
"""

import numpy as np
import pytest

from realm_jax.text.wordpieces import VocabularyError
from realm_jax.weights import WeightsError, google
from tests.weights import models
from tests.weights import tf_files as tf

pytestmark = pytest.mark.slow

_NAME = "hf_bert/with_pooler"
_TENSORS = models.tensors(models.GOLDEN / _NAME)
_BIAS = "encoder.layer.0.output.dense.bias"
_PIECES = (models.GOLDEN / _NAME / "vocab.txt").read_text().splitlines()
_OTHER_PIECES = [*_PIECES[:-2], *reversed(_PIECES[-2:])]
_UNTIED = models.tensors(models.GOLDEN / "hf_bert" / "masked_lm")
_UNTIED["cls.predictions.decoder.weight"] = np.zeros((174, 24), np.float32)


def _both(*writers):
  def write(folder):
    for one in writers:
      one(folder)

  return write


def _bert(name="in", weights=None, pieces=None, **changes):
  return lambda folder: models.copy(
    _NAME, folder / name, weights, pieces, **changes
  )


def _json(name, content):
  """A BERT with another JSON file."""
  return _both(
    _bert(), lambda folder: models.write_json(folder / "in" / name, content)
  )


def _dense(**settings):
  """A chain of sentence-transformers with one module more."""
  chain = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
  content = [{"type": f"a.{k}", "path": path} for path, k in chain.items()]
  return _both(
    lambda folder: models.write_sentence_modules(
      folder / "in", mode="cls_token"
    ),
    _json("2_Dense/config.json", settings),
    _json("modules.json", content),
  )


def _without(name):
  return lambda folder: (folder / "in" / name).unlink()


def _cut(name):
  def cut(folder):
    path = folder / "in" / name
    path.write_bytes(path.read_bytes()[:-5])

  return cut


def _tf_bert(more=(), **changes):
  variables = tf.bert() | dict(more)
  return lambda folder: tf.write_bert(folder / "in", variables, **changes)


_SQUAD = {"cls/squad/weights": np.zeros((2, 4), np.float32)}
_CASES = {
  "hf_bert": [
    # config.json and the weights.
    (_bert(model_type="roberta"), "roberta"),
    (_bert(intermediate_size=16), r"\[48, 24\], where .* wants \[16, 24\]"),
    (_bert(weights={"w": np.ones(3)}), "no BERT"),
    (_bert(weights=_TENSORS | {"head.weight": np.ones(4)}), "--ignore"),
    (_bert(weights=_TENSORS | {_BIAS: np.full(24, np.nan)}), "NaN"),
    (_bert(weights=_UNTIED), r"decoder\.weight .* differ"),
    (_both(_bert(), _cut("model.safetensors")), "copy it again"),
    (
      _bert(
        weights={p + n: t for n, t in _TENSORS.items() for p in ("a.", "b.")}
      ),
      "'a.', 'b.'",
    ),
    # Vocabularies and tokenizers.
    (_bert(pieces=_PIECES[:-1]), "unused_row"),
    (_json("tokenizer_config.json", {"do_lower_case": False}), "cased"),
    (
      _both(
        _json("tokenizer.json", {"model": {"type": "BPE", "vocab": {}}}),
        _without("vocab.txt"),
      ),
      "BPE",
    ),
    # A second input.
    (_both(_bert(), _bert("other", pieces=_OTHER_PIECES)), "vocabularies"),
    # Files of sentence-transformers.
    (_dense(activation_function="ReLU"), "ReLU"),
  ],
  "hf_realm": [
    (
      lambda folder: models.copy(
        "hf_realm/embedder", folder / "in", architectures=["RealmBert"]
      ),
      "RealmBert",
    ),
  ],
  "tf_bert": [
    (_tf_bert(_SQUAD), r"cls/squad/weights \[2, 4\]"),
    (
      _both(_tf_bert(), _cut("bert_model.ckpt.data-00000-of-00001")),
      "is not read",
    ),
  ],
  "tf_realm": [
    (
      _both(
        lambda folder: tf.write_fine_tuned(folder / "in", "module/"),
        _without("vocab.txt"),
      ),
      "pass --vocab",
    ),
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
    ({"path": "gs://bucket/bert"}, "in a bucket"),
    ({"block_input": "second", "parts": ["reader"]}, "is for a retriever"),
    ({"block_records": "a", "index": "exact"}, "--block_records, --index with"),
  ],
)
def test_a_choice_that_does_not_fit_leaves_nothing(tmp_path, options, word):
  home = models.GOLDEN / _NAME
  if "block_input" in options:
    options = {**options, "block_input": home}
  given = {"path": home, **options}
  with pytest.raises((WeightsError, VocabularyError), match=word):
    models.import_weights("hf_bert", output_dir=tmp_path / "out", **given)
  assert not [*tmp_path.iterdir()]


def test_a_second_projection_is_refused():
  golden = models.GOLDEN / "hf_realm" / "embedder"
  with pytest.raises(WeightsError, match="--projection_size"):
    models.read("hf_realm", golden, projection_size=3)


def test_damaged_records_are_refused(tmp_path):
  path = tf.write_records(tmp_path / "in" / "blocks.tfr", [b"a block"] * 2000)
  _cut("blocks.tfr")(tmp_path)
  with pytest.raises(WeightsError, match="whole file of TFRecords"):
    list(google.read_records(path))
