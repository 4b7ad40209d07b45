"""Imported REALM models compute what transformers computes with them.

The values are transformers': see `tests/golden/make_hf_realm.py`.
"""

import pytest

from benchmarks.agreement import realm

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  "compare",
  [
    # The gradients take their time to compile.
    compare
    if compare in (realm.compare_embedder, realm.compare_two_towers)
    else pytest.param(compare, marks=pytest.mark.slow)
    for compare in realm.COMPARISONS
  ],
  ids=lambda compare: compare.__name__,
)
def test_agreement(project_dir, compare):
  rows = compare(project_dir / "tests" / "golden" / "hf_realm")
  assert [row for row in rows if not row.passed] == []
