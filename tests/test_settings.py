"""Values of a configuration against settings."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from etils import epath

from experiments.world.world import WorldConfig
from realm_jax import settings
from realm_jax.indexes.scann import ScannConfig
from realm_jax.models.bert import BertConfig
from realm_jax.snapshots.index_builder import IndexBuilderConfig
from realm_jax.training.config import RefreshConfig
from realm_jax.training.stages.open_qa import OpenQa


@pytest.mark.parametrize(
  ("annotation", "good", "bad", "words"),
  [
    (int, [3, -1, np.int64(3)], [1.5, True, "3", None], "an integer"),
    (
      float,
      [3, 0.5, np.float32(0.5)],
      [True, "3", None, math.inf, math.nan],
      "a number",
    ),
    (bool, [True], [1, "True", None], "True or False"),
    (Literal["a", "b"], ["a"], ["c", None], "'a' or 'b'"),
    (
      Sequence[str],
      [["a"], ("a",), []],
      ["a", ["a", 1]],
      "a list, each a string",
    ),
    (
      tuple[str, int | None],
      [("a", 1), ["a", None]],
      [("a",), (1, 1), ("a", "b"), ("a", 1, 1)],
      "(a string, an integer or None)",
    ),
    (epath.PathLike, ["a", epath.Path("a")], [1, None], "a string or a path"),
    (BertConfig, [BertConfig()], ["a"], "BertConfig"),
    (settings.PositiveInt, [1], [0, -1, 1.5], "an integer of at least 1"),
    (settings.Fraction, [0, 0.5, 1], [-0.1, 1.1], "a number from 0 to 1"),
    (
      settings.DropoutRate | None,
      [0, None],
      [1.0, math.nan],
      "a number of at least 0 and below 1 or None",
    ),
  ],
)
def test_a_value_fits_its_annotation_or_not(annotation, good, bad, words):
  for value in good:
    assert settings.accepts(annotation, value)
  for value in bad:
    assert not settings.accepts(annotation, value)
  assert settings.describe(annotation) == words


@pytest.mark.parametrize(
  ("config", "fields"),
  [
    (BertConfig, {"num_layers": 0, "dropout_rate": 1.0}),
    (RefreshConfig, {"on_stale": "never", "rolling_refresh_dtype": "bf16"}),
    (OpenQa, {"num_read": 0, "num_searched_blocks": -1}),
    (IndexBuilderConfig, {"mode": "all", "keep_snapshots": 0}),
    (ScannConfig, {"recall_target": 1.2, "num_leaves": 0}),
    (WorldConfig, {"held_out_test": 2.0}),
  ],
)
def test_a_value_that_a_field_does_not_take_is_refused(config, fields):
  for name, value in fields.items():
    with pytest.raises(ValueError, match=rf"{name}.*{config.__name__}.{name} "):
      config(**{name: value})
