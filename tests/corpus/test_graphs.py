"""Graphs of blocks around what was found."""

import numpy as np
import pytest

from realm_jax.corpus.graphs import edge_kinds, expanded
from realm_jax.corpus.store import Corpus


@pytest.fixture
def corpus(build) -> Corpus:
  """Ada → Rome → Bob, of a country; Rome has two blocks."""
  mayor = {"title": "Bob", "relation": "mayor"}
  return build(
    [
      {"title": "Ada", "text": "Built in Rome.", "links": ["Rome"]},
      {
        "title": "Rome",
        "text": "Ada was in the cafe. " * 4,
        "links": [mayor, {"title": "Nobody"}],
      },
      {"title": "Bob", "text": "Stone."},
      {"title": "Eve", "text": "Stone."},
    ],
    block_length=20,
  )


def test_neighbours_follow_the_seeds_in_turn(corpus):
  titles = [corpus.block(row).title for row in range(corpus.num_blocks)]
  ada, rome, bob, eve = map(titles.index, ("Ada", "Rome", "Bob", "Eve"))
  parts = [row for row, title in enumerate(titles) if title == "Rome"]
  assert len(parts) > 1
  rows = expanded(corpus, np.array([[ada, eve], [rome, ada]]), 4)
  assert rows[0].tolist() == [ada, eve, rome, -1]
  # What Rome links to, before its other blocks; it is a seed itself.
  assert rows[1].tolist() == [rome, ada, bob, parts[1]]
  assert expanded(corpus, np.array([[ada, eve]]), 1).tolist() == [[ada]]


def test_kinds_of_edges_are_those_of_links_and_documents(corpus):
  titles = [corpus.block(row).title for row in range(corpus.num_blocks)]
  ada, rome, bob = map(titles.index, ("Ada", "Rome", "Bob"))
  second = rome + 1
  kinds = edge_kinds(corpus, np.array([[ada, rome, bob, second, -1]]))[0]
  expected = np.zeros((5, 5), int)
  expected[0, 1] = 2
  expected[1, 2] = 2 + corpus.relations.index("mayor")
  expected[1, 3] = expected[3, 1] = 1
  np.testing.assert_array_equal(kinds, expected)
