"""Import of a cross-encoder beside the components of a run."""

import contextlib

import numpy as np
import pytest
from safetensors.numpy import save_file

from realm_jax.checkpoints.store import locate
from realm_jax.weights import WeightsError
from realm_jax.weights.hugging_face import read_cross_encoder
from tests.weights import models

_BERT = models.GOLDEN / "hf_bert" / "masked_lm"
_CLASS = ["BertForSequenceClassification"]


@pytest.fixture
def scoring(tmp_path):
  """The folder of a cross-encoder, whose BERT is the golden one."""

  def make(name="cross", **changes):
    folder = tmp_path / name
    folder.mkdir()
    weights = models.tensors(_BERT)
    size = weights["bert.embeddings.word_embeddings.weight"].shape[1]
    rng = np.random.default_rng(0)
    weights = {n: w for n, w in weights.items() if n.startswith("bert.")}
    weights |= {
      "bert.pooler.dense.weight": rng.normal(size=(size, size)).astype("f4"),
      "bert.pooler.dense.bias": np.zeros(size, np.float32),
      "classifier.weight": rng.normal(size=(1, size)).astype(np.float32),
      "classifier.bias": np.ones(1, np.float32),
    }
    fields = {"architectures": _CLASS, "id2label": {"0": "LABEL_0"}} | changes
    return models.copy("hf_bert/masked_lm", folder, weights, **fields)

  return make


def test_a_run_keeps_its_components_and_gets_the_cross_encoder(
  scoring, tmp_path
):
  start, combined = tmp_path / "start", tmp_path / "made"
  models.import_weights("hf_bert", _BERT, start)
  models.import_weights("hf_reranker", scoring(), combined, retriever=start)
  params = []
  for run in (start, combined):
    store, step = locate(run)
    with contextlib.closing(store):
      present = store.components(step)
      params.append(store.restore(step, items=tuple(present)))
  before, after = params
  reranker = after.pop("reranker")
  models.assert_same_bits(before, after)
  read = read_cross_encoder(tmp_path / "cross")
  models.assert_same_bits(reranker, read.params)
  assert reranker["classifier"]["bias"].tolist() == [1.0]
  # An encoder that has scored nothing yet begins with a random classifier.
  folder = tmp_path / "cross"
  weights = models.tensors(folder)
  save_file(
    {n: w for n, w in weights.items() if not n.startswith("classifier")},
    folder / "model.safetensors",
  )
  fresh = read_cross_encoder(folder, ["classifier/.*"]).params["classifier"]
  assert fresh["bias"].tolist() == [0.0] and fresh["kernel"].any()


@pytest.mark.parametrize(
  ("changes", "options", "message"),
  [
    ({"architectures": ["BertModel"]}, {}, "BertForSequenceClassification"),
    ({"id2label": {"0": "no", "1": "yes"}}, {}, "2 labels; want one"),
    ({}, {"retriever": None}, "as --retriever"),
    ({}, {"pooling": "cls"}, "--pooling is not for hf_reranker"),
  ],
)
def test_what_is_no_cross_encoder_is_refused(
  scoring, tmp_path, changes, options, message
):
  settings = {"retriever": tmp_path / "absent", **options}
  with pytest.raises(WeightsError, match=message):
    models.import_weights(
      "hf_reranker", scoring(**changes), tmp_path / "made", **settings
    )
  assert not (tmp_path / "made").exists()
