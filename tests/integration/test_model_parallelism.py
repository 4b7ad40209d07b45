"""A run whose parameters are split over devices."""

import pytest

from tests import tiny_world
from tests.integration.commands import Commands

_STEPS = 6


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
  """Commands over a world whose number of wordpieces two devices can share."""
  folder = tmp_path_factory.mktemp("even")
  world = tiny_world.build(folder, more_pieces=["##ø" * 2])
  assert world.corpus.vocab_size % 2 == 0
  return Commands(world)


@pytest.mark.slow
def test_two_devices_share_the_parameters_and_compute_the_same(
  commands, tmp_path
):
  losses = {}
  for devices in (1, 2):
    result = commands.train(
      "inverse_cloze",
      tmp_path / str(devices),
      NUM_STEPS=_STEPS,
      MODEL_PARALLELISM=devices,
      PACK=False,
    )
    assert result.step == _STEPS
    losses[devices] = result.metrics["loss"]
  assert losses[2] == pytest.approx(losses[1], rel=1e-4)


def test_a_number_of_wordpieces_that_two_devices_cannot_share(world, tmp_path):
  assert world.corpus.vocab_size % 2 == 1
  with pytest.raises(ValueError, match=r"word_embeddings.* cannot be divided"):
    Commands(world).train(
      "inverse_cloze", tmp_path, NUM_STEPS=1, MODEL_PARALLELISM=2
    )
  assert not (tmp_path / "checkpoints" / "0").exists()
