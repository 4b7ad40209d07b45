"""Tables applied: what is mapped, unused, initialized or refused."""

import ml_dtypes
import numpy as np
import pytest

from realm_jax.weights import WeightsError, reading
from realm_jax.weights.tables import Module

_TABLE = (
  Module("dense", "their/dense", "dense", 4.0),
  Module("norm", "norm", "norm"),
  Module("norm", "copy", "norm"),
)
_SHAPES = {
  "dense/kernel": (2, 3),
  "dense/bias": (3,),
  "norm/scale": (3,),
  "norm/bias": (3,),
}
_TENSORS = {
  "their.dense.weight": 4 * np.arange(6, dtype=np.float32).reshape(3, 2),
  "their.dense.bias": np.full(3, 8, np.float32),
  "norm.gamma": np.ones(3, np.float32),
  "norm.beta": np.zeros(3, np.float32),
}


def _read(changes=(), *, without="", shapes=(), allowed=()):
  tensors = _TENSORS | dict(changes)
  tensors.pop(without, None)
  return reading.read(
    tensors,
    _TABLE,
    _SHAPES | dict(shapes),
    system="torch",
    allowed=dict.fromkeys(allowed, "allowed"),
  )


def test_kernels_are_transposed_factors_divided_and_old_names_found():
  parameters, report = _read()
  np.testing.assert_array_equal(
    parameters["dense/kernel"], [[0, 2, 4], [1, 3, 5]]
  )
  np.testing.assert_array_equal(parameters["dense/bias"], [2, 2, 2])
  assert report.mapped["norm/scale"] == "norm.gamma"
  assert (report.unused, report.fresh) == ({}, {})


def test_half_precision_becomes_float32():
  halves = {
    name: array.astype(ml_dtypes.bfloat16) for name, array in _TENSORS.items()
  }
  parameters, _ = _read(halves)
  assert {p.dtype for p in parameters.values()} == {np.dtype(np.float32)}
  assert parameters["dense/kernel"][1, 2] == 5.0


def test_what_is_named_may_be_left_out_or_initialized():
  more = {"head.weight": np.zeros((4, 5), np.float32)}
  _, report = _read(more, allowed=[r"head\..*"])
  assert report.unused == {"head.weight": "allowed"}
  parameters, report = _read(without="norm.gamma", allowed=["norm/scale"])
  assert report.fresh == {"norm/scale": "allowed"}
  assert "norm/scale" not in parameters
  # Of another shape, it must be both.
  allowed = ["their.*weight", "dense/kernel"]
  _, report = _read(shapes={"dense/kernel": (2, 4)}, allowed=allowed)
  assert [*report.unused] == ["their.dense.weight"]
  assert [*report.fresh] == ["dense/kernel"]


def test_copies_must_be_equal():
  same = {"copy.weight": np.ones(3, np.float32)}
  _, report = _read(same)
  assert report.mapped["norm/scale"] == "norm.gamma"
  assert report.unused == {"copy.weight": "the same as norm.gamma"}
  other = {"copy.weight": np.zeros(3, np.float32)}
  with pytest.raises(WeightsError, match="differ"):
    _read(other)
  parameters, _ = _read(other, allowed=["copy.weight"])
  assert parameters["norm/scale"].all()


@pytest.mark.parametrize(
  ("given", "word"),
  [
    ({"changes": {"head.weight": np.ones(4)}}, r"head\.weight \[4\]"),
    # A pattern is for the whole name.
    ({"changes": {"head.weight": np.ones(4)}, "allowed": ["head"]}, "--ignore"),
    ({"without": "norm.beta"}, r"norm/bias \[3\]"),
    ({"without": "norm.beta", "allowed": ["norm"]}, "--ignore"),
    ({"shapes": {"dense/kernel": (2, 4)}}, r"\[3, 2\], where .* \[4, 2\]"),
    (
      {"shapes": {"dense/kernel": (2, 4)}, "allowed": ["their.*"]},
      r"dense/kernel \[2, 4\]",
    ),
    ({"changes": {"norm.gamma": np.ones(3, np.int8)}}, "int8"),
    ({"changes": {"norm.gamma": np.array([1, np.nan, 1])}}, "NaN"),
  ],
)
def test_what_does_not_fit_is_refused(given, word):
  with pytest.raises(WeightsError, match=word):
    _read(**given)
