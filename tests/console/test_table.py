"""The table of figures that commands print."""

from realm_jax.console.table import figures_table


def test_the_table_is_aligned():
  assert figures_table({"exact_match": 0.5, "n": 3, "mrr": 1 / 3}) == (
    "exact_match  0.5000\nn            3\nmrr          0.3333"
  )
