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
def test_four_devices_share_the_parameters_and_compute_the_same(
  commands, tmp_path
):
  losses = {}
  for sharing in (1, 2):
    result = commands.train(
      "inverse_cloze",
      tmp_path / str(sharing),
      NUM_STEPS=_STEPS,
      FSDP=sharing,
      MODEL_PARALLELISM=sharing,
      PACK=False,
    )
    assert result.step == _STEPS
    losses[sharing] = result.metrics["loss"]
  assert losses[2] == pytest.approx(losses[1], rel=1e-4)


def test_a_number_of_wordpieces_that_two_devices_cannot_share(world, tmp_path):
  assert world.corpus.vocab_size % 2 == 1
  with pytest.raises(ValueError, match=r"'vocab', which cannot be divided .*"):
    Commands(world).train(
      "inverse_cloze", tmp_path, NUM_STEPS=1, MODEL_PARALLELISM=2
    )
  assert not (tmp_path / "checkpoints" / "0").exists()


@pytest.mark.slow
def test_a_vocabulary_that_cannot_be_divided_may_be_replicated(world, tmp_path):
  result = Commands(world).train(
    "inverse_cloze",
    tmp_path,
    NUM_STEPS=1,
    MODEL_PARALLELISM=2,
    AXIS_RULES=[("vocab", None)],
  )
  assert result.step == 1


def test_heads_that_cannot_be_divided_are_refused(world, tmp_path):
  with pytest.raises(ValueError, match="num_heads=2 cannot be divided over 4"):
    Commands(world).train(
      "inverse_cloze", tmp_path, NUM_STEPS=1, MODEL_PARALLELISM=4
    )
