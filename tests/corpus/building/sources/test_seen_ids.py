"""Finding repeated ids without keeping them."""

import pytest

from realm_jax.corpus.building.sources import seen_ids


@pytest.mark.parametrize("recent", [1, 3, 1_000])
def test_against_a_dictionary(monkeypatch, recent):
  monkeypatch.setattr(seen_ids, "_RECENT", recent)
  seen, expected = seen_ids.SeenIds(), {}
  # 7 and 300 share no factor, so this visits each of 300 names in turn.
  for number in range(400):
    name = f"document {7 * number % 300}"
    assert seen.add(name, number) == expected.get(name)
    expected.setdefault(name, number)
