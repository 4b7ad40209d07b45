"""Inputs that cannot be read, or do not fit, are refused in words."""

import numpy as np
import pytest

from realm_jax.storage.json_files import write_json
from realm_jax.text.wordpieces import VocabularyError
from realm_jax.weights import WeightsError
from tests.weights import models

pytestmark = pytest.mark.slow

_REFUSED = (WeightsError, VocabularyError)
_NAME = "hf_bert/with_pooler"
_TENSORS = models.tensors(models.GOLDEN / _NAME)
_PIECES = (models.GOLDEN / _NAME / "vocab.txt").read_text().splitlines()


@pytest.mark.parametrize(
  ("changes", "word"),
  [
    ({"model_type": "roberta"}, "roberta"),
    ({"intermediate_size": 16}, r"\[48, 24\], where .* wants \[16, 24\]"),
    ({"weights": _TENSORS | {"head.weight": np.ones(4)}}, "--ignore"),
    (
      {
        "weights": {p + n: t for n, t in _TENSORS.items() for p in ("a.", "b.")}
      },
      "'a.', 'b.'",
    ),
  ],
)
def test_a_model_is_refused(tmp_path, changes, word):
  models.copy(_NAME, tmp_path, **changes)
  with pytest.raises(_REFUSED, match=word):
    models.read("hf_bert", tmp_path)


def test_other_vocabularies_and_damaged_weights_are_refused(tmp_path):
  folder = models.copy(_NAME, tmp_path / "in")
  other = [*_PIECES[:-2], *reversed(_PIECES[-2:])]
  block_input = models.copy(_NAME, tmp_path / "other", pieces=other)
  with pytest.raises(_REFUSED, match="vocabularies"):
    models.read("hf_bert", folder, block_input=block_input)
  write_json(block_input / "tokenizer_config.json", {"do_lower_case": False})
  with pytest.raises(_REFUSED, match="cased"):
    models.read("hf_bert", block_input)
  weights = folder / "model.safetensors"
  weights.write_bytes(weights.read_bytes()[:-5])
  with pytest.raises(_REFUSED, match="copy it again"):
    models.read("hf_bert", folder)


@pytest.mark.parametrize(
  ("options", "word"),
  [
    ({"path": "gs://bucket/bert"}, "in a bucket"),
    ({"block_records": "a", "index": "exact"}, "--block_records, --index with"),
  ],
)
def test_a_choice_that_does_not_fit_leaves_nothing(tmp_path, options, word):
  given = {"path": models.GOLDEN / _NAME, **options}
  with pytest.raises(WeightsError, match=word):
    models.import_weights("hf_bert", output_dir=tmp_path / "out", **given)
  assert not [*tmp_path.iterdir()]
