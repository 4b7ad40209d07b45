"""Imported models compute what transformers computes with them.

The values are transformers': see `tests/golden/make_hf.py`.
"""

import numpy as np
import pytest

from benchmarks.agreement import comparison, imported_model, realm
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.plan import make_plan

pytestmark = pytest.mark.slow


def _load(directory, **options):
  plan = make_plan(ImportConfig("hf_bert", directory, **options))
  return imported_model.load(plan)


def _pooled(expected, side, pooling):
  """The vector that transformers' own hidden states give, [b, d]."""
  hidden, is_token = expected[f"{side}_hidden"], expected[side] != 0
  if pooling == "mean":
    total = np.where(is_token[..., None], hidden, 0).sum(axis=1)
    return total / is_token.sum(axis=1, keepdims=True)
  return expected[f"{side}_pooled"]


@pytest.fixture(scope="module")
def golden(project_dir):
  return project_dir / "tests" / "golden"


@pytest.mark.parametrize(
  ("folder", "pooling", "normalize"),
  [
    ("with_pooler", "pooler", False),
    ("without_pooler", "mean", True),
  ],
)
def test_vectors(golden, folder, pooling, normalize):
  folder = golden / "hf_bert" / folder
  model = _load(folder, pooling=pooling, normalize=normalize)
  expected = np.load(folder / "expected.npz")
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
  folder = golden / "hf_bert" / "masked_lm"
  expected = np.load(folder / "expected.npz")
  query = expected["query"]
  ours = _load(folder).masked_lm_logits(
    query,
    expected["block"][:, None],
    np.tile(expected["mask_positions"], (len(query), 1)),
  )
  row = comparison.differences("logits", ours[:, 0], expected["joint_logits"])
  assert row.passed, row


@pytest.mark.parametrize(
  "compare", realm.COMPARISONS, ids=lambda compare: compare.__name__
)
def test_realm(golden, compare):
  rows = compare(golden / "hf_realm")
  assert [row for row in rows if not row.passed] == []
