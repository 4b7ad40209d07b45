"""The generation builder by itself, without checkpoints or a sidecar."""

import jax
import pytest

from realm_jax.generations.building.generation_builder import (
  GenerationBuilder,
  RestoredRetriever,
)
from realm_jax.generations.store import layout
from tests.generations.builds import generation_config, params_of
from tests.generations.conftest import make_corpus

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture
def builder(generations_dir, corpus):
  return GenerationBuilder(
    generation_config(), corpus, generations_dir=generations_dir
  )


def test_up_to_date_are_valid_generations_of_these_settings(
  builder, generations_dir, corpus, tmp_path
):
  assert builder.up_to_date() == set()
  restored = RestoredRetriever(jax.device_put(params_of(corpus, 0)))
  for step in (0, 500):
    builder.build(step, restored)
  assert builder.up_to_date([500]) == {0, 500}
  (generations_dir / "00000000" / layout.MANIFEST).write_text("{}")
  assert builder.up_to_date([500]) == {500}
  edited = make_corpus(tmp_path / "edited", num_blocks=150, seed=5)
  other = GenerationBuilder(
    generation_config(), edited, generations_dir=generations_dir
  )
  assert other.up_to_date() == set()


def test_what_the_check_raises_ends_the_build(builder, generations_dir, corpus):
  def check():
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    builder.build(0, RestoredRetriever(params_of(corpus, 0)), check=check)
  assert layout.published_steps(generations_dir) == []
