"""An imported BERT computes what transformers computes.

The values are transformers': see `tests/golden/make_hf_bert.py`.
"""

import numpy as np
import pytest

from benchmarks.agreement import comparison, imported_model
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.hugging_face.bert import plan_hf_bert
from realm_jax.conversion.planning import ImportSource

pytestmark = pytest.mark.slow


def _pooled(expected, side, pooling):
  """The vector that transformers' own hidden states give, [b, d]."""
  hidden, is_token = expected[f"{side}_hidden"], expected[side] != 0
  if pooling == "mean":
    total = np.where(is_token[..., None], hidden, 0).sum(axis=1)
    return total / is_token.sum(axis=1, keepdims=True)
  return hidden[:, 0] if pooling == "cls" else expected[f"{side}_pooled"]


@pytest.fixture(scope="module")
def golden(project_dir):
  return project_dir / "tests" / "golden" / "hf_bert"


@pytest.mark.parametrize(
  ("folder", "pooling", "normalize"),
  [
    ("with_pooler", "pooler", False),
    ("with_pooler", "mean", True),
    ("without_pooler", "cls", False),
    ("masked_lm", "cls", True),
  ],
)
def test_vectors(golden, folder, pooling, normalize):
  options = TowerOptions(pooling=pooling, normalize=normalize)
  plan = plan_hf_bert(ImportSource("hf_bert", golden / folder), options)
  model = imported_model.load(plan)
  expected = np.load(golden / folder / "expected.npz")
  for side, ours in (
    ("query", model.query_vectors(expected["query"])),
    ("block", model.block_vectors(expected["block"])),
  ):
    theirs = _pooled(expected, side, pooling)
    if normalize:
      theirs = theirs / np.linalg.norm(theirs, axis=-1, keepdims=True)
    row = comparison.differences(side, ours, theirs)
    assert row.passed, row


def test_masked_words(golden):
  source = ImportSource("hf_bert", golden / "masked_lm")
  plan = plan_hf_bert(source, TowerOptions())
  expected = np.load(golden / "masked_lm" / "expected.npz")
  query = expected["query"]
  ours = imported_model.load(plan).masked_lm_logits(
    query,
    expected["block"][:, None],
    np.tile(expected["mask_positions"], (len(query), 1)),
  )
  row = comparison.differences("logits", ours[:, 0], expected["joint_logits"])
  assert row.passed, row
