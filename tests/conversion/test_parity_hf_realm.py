"""Imported REALM models compute what transformers computes with them.

The values are transformers': see `tests/golden/make_hf_realm.py`.
"""

import pytest

from benchmarks import realm_agreement


@pytest.mark.parametrize(
  "compare",
  [
    pytest.param(compare, marks=pytest.mark.slow)
    if compare is realm_agreement.compare_pretraining
    else compare
    for compare in realm_agreement.COMPARISONS
  ],
  ids=lambda compare: compare.__name__,
)
def test_agreement(project_dir, compare):
  rows = compare(project_dir / "tests" / "golden" / "hf_realm")
  assert [row for row in rows if not row.passed] == []
