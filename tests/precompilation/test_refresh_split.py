"""A builder's chips and the trainer's steps divide the time between them."""

from realm_jax.precompilation import refresh_split


def test_a_generation_takes_as_long_as_its_batches():
  # 100 batches of 2 s and 10 of 5 s, each on 4 chips, keep one chip 1,000 s.
  one_chip = refresh_split.chip_seconds(
    [(100, 2.0), (10, 5.0)], chips_per_batch=4
  )
  assert one_chip == 1000
  found = refresh_split.split(
    8, chip_seconds=one_chip, step_seconds=0.25, save_every_steps=100
  )
  assert (found.seconds, found.trainer_steps) == (125, 500)
  # The newest vectors are 500 steps old when they are first searched, and
  # twice as old when they are searched last.
  assert found.staleness_steps == 1000


def test_no_generation_is_newer_than_a_checkpoint():
  found = refresh_split.split(
    100, chip_seconds=1000, step_seconds=1.0, save_every_steps=500
  )
  assert found.trainer_steps == 500


def test_chips_for_a_generation_in_so_many_steps():
  chips = refresh_split.chips_for(500, chip_seconds=1001, step_seconds=0.25)
  assert chips == 9
