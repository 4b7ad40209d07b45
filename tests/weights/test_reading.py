"""Tables applied: what is mapped, unused, initialized or refused."""

import ml_dtypes
import numpy as np
import pytest

from realm_jax.weights import WeightsError, reading
from realm_jax.weights.tables import Module

_TABLE = (
  Module("dense", "their/dense", "dense", 4.0),
  Module("norm", "norm", "norm"),
  Module("pooler", "pooler", "dense"),
)
_SHAPES = {
  "dense/kernel": (2, 3),
  "dense/bias": (3,),
  "norm/scale": (3,),
  "norm/bias": (3,),
  "head/bias": (2,),
}
_TENSORS = {
  "their.dense.weight": 4 * np.arange(6, dtype=np.float32).reshape(3, 2),
  "their.dense.bias": np.full(3, 8, np.float32),
  "norm.gamma": np.ones(3, np.float32),
  "norm.beta": np.zeros(3, np.float32),
  "pooler.bias": np.ones(7, np.float32),
}


def _read(changes=(), *, without="", shapes=(), allowed=()):
  tensors = _TENSORS | dict(changes)
  tensors.pop(without, None)
  parameters, lines = reading.read(
    tensors,
    _TABLE,
    _SHAPES | dict(shapes),
    system="torch",
    allowed=dict.fromkeys(allowed, "allowed"),
  )
  return parameters, "\n".join(lines)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_kernels_are_transposed_factors_divided_and_old_names_found(dtype):
  parameters, lines = _read({n: a.astype(dtype) for n, a in _TENSORS.items()})
  assert {p.dtype for p in parameters.values()} == {np.dtype(np.float32)}
  kernel = [[0, 2, 4], [1, 3, 5]]
  np.testing.assert_array_equal(parameters["dense/kernel"], kernel)
  np.testing.assert_array_equal(parameters["dense/bias"], [2, 2, 2])
  assert "norm/scale [3] <- norm.gamma" in lines
  # Modules that the model lacks, and that the table lacks.
  assert "pooler.bias [7]: of no use" in lines
  assert "head/bias [2]: not in the input" in lines
  assert "head/bias" not in parameters


def test_what_is_named_may_be_left_out_or_initialized():
  more = {"head.weight": np.zeros((4, 5), np.float32)}
  _, lines = _read(more, allowed=[r"head\..*"])
  assert "head.weight [4, 5]: allowed" in lines
  parameters, lines = _read(without="norm.gamma", allowed=["norm/scale"])
  assert "norm/scale [3]: allowed" in lines
  assert "norm/scale" not in parameters
  # Of another shape, it must be both.
  allowed = ["their.*weight", "dense/kernel"]
  _, lines = _read(shapes={"dense/kernel": (2, 4)}, allowed=allowed)
  assert "their.dense.weight [3, 2]: allowed" in lines
  assert "dense/kernel [2, 4]: allowed" in lines


@pytest.mark.parametrize(
  ("given", "word"),
  [
    # A pattern is for the whole name.
    ({"changes": {"head.weight": np.ones(4)}, "allowed": ["head"]}, "--ignore"),
    (
      {"shapes": {"dense/kernel": (2, 4)}, "allowed": ["their.*"]},
      r"dense/kernel \[2, 4\]",
    ),
    ({"changes": {"norm.gamma": np.ones(3, np.int8)}}, "int8"),
    ({"changes": {"norm.gamma": np.array([1, np.nan, 1])}}, "NaN"),
    ({"changes": {str(i): np.ones(1) for i in range(30)}}, "and 10 more"),
  ],
)
def test_what_does_not_fit_is_refused(given, word):
  with pytest.raises(WeightsError, match=word):
    _read(**given)
