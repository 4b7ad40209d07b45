"""Inverse cloze beside an index builder, whose generations it searches."""

import pytest

from realm_jax.training.metric_rows import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


def test_inverse_cloze_learns_from_what_its_generation_retrieves(
  commands, tmp_path
):
  with commands.index_builder(tmp_path):
    done = commands.train(
      "inverse_cloze",
      tmp_path,
      NUM_STEPS=4,
      NUM_HARD_NEGATIVES=2,
      NUM_MICROBATCHES=2,
      SAVE_EVERY_STEPS=4,
      PACK=False,
    )
  assert done.step == 4
  rows = read_rows(tmp_path)
  assert {row["generation"] for row in rows} == {0}
  assert all(row["loss"] > 0 for row in rows)
  assert [row["staleness_steps"] for row in rows] == [0, 1, 2, 3]
