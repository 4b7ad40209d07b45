import pytest

from realm_jax.demo_world import world as world_lib

# A tenth of the demo's size; people and cities stay the most numerous.
SMALL = {
  "num_people": 24,
  "num_cities": 24,
  "num_countries": 8,
  "num_rivers": 8,
  "num_companies": 16,
  "num_books": 16,
}


@pytest.fixture(scope="session")
def small_sizes():
  """The numbers of entities of `small_world`."""
  return dict(SMALL)


@pytest.fixture(scope="session")
def small_world():
  """A world of some 200 documents."""
  return world_lib.generate(world_lib.WorldConfig(seed=3, **SMALL))


@pytest.fixture(scope="session")
def demo_world():
  """The world that the demo trains on; a second to make."""
  return world_lib.generate()
