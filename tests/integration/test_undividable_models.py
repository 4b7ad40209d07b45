"""Models that the devices of a mesh cannot divide."""

import pytest

from tests.integration.commands import Commands


def test_a_number_of_wordpieces_that_two_devices_cannot_share(world, tmp_path):
  assert world.corpus.vocab_size % 2 == 1
  with pytest.raises(ValueError, match=r"'vocab', which cannot be divided .*"):
    Commands(world).train(
      "inverse_cloze", tmp_path, NUM_STEPS=1, MODEL_PARALLELISM=2
    )
  assert not (tmp_path / "checkpoints" / "0").exists()


def test_heads_that_cannot_be_divided_are_refused(world, tmp_path):
  with pytest.raises(ValueError, match="num_heads=2 cannot be divided over 4"):
    Commands(world).train(
      "inverse_cloze", tmp_path, NUM_STEPS=1, MODEL_PARALLELISM=4
    )
