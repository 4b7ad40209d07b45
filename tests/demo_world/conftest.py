import pytest

from realm_jax.demo_world import world as world_lib


@pytest.fixture(scope="session")
def small_world():
  """A world of some 600 documents, a fifth of the demo's."""
  return world_lib.generate(
    world_lib.WorldConfig(
      seed=3, num_people=80, num_cities=80, num_companies=30
    )
  )


@pytest.fixture(scope="session")
def demo_world():
  """The world that the demo trains on; a second to make."""
  return world_lib.generate()
