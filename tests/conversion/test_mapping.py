"""Rules applied: what is mapped, left, fresh or refused."""

import ml_dtypes
import numpy as np
import pytest

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.mapping import Allowance, Feed, read_parameters
from realm_jax.conversion.names import Rule
from tests.conversion.dict_source import DictSource

_RULES = (
  Rule("dense/kernel", ("dense.weight",), transpose=True),
  Rule("norm/scale", ("norm.weight", "norm.gamma")),
)
_SHAPES = {"dense/kernel": (2, 3), "norm/scale": (3,)}
_TENSORS = {
  "dense.weight": np.arange(6, dtype=np.float32).reshape(3, 2),
  "norm.gamma": np.ones(3, np.float32),
}


def _read(tensors, *, shapes=None, leftovers=None, fresh=None, **allowed):
  return read_parameters(
    [Feed(DictSource(tensors), _RULES, leftovers or {})],
    shapes or _SHAPES,
    expected_fresh=fresh or {},
    allowance=Allowance(**allowed),
  )


def test_a_kernel_is_transposed_and_an_old_name_is_found():
  parameters, report = _read(_TENSORS)
  np.testing.assert_array_equal(
    parameters["dense/kernel"], [[0, 2, 4], [1, 3, 5]]
  )
  assert [(row.name, row.reason) for row in report.mapped] == [
    ("dense/kernel", "dense.weight"),
    ("norm/scale", "norm.gamma"),
  ]
  assert not report.left
  assert not report.fresh


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_becomes_float32(dtype):
  tensors = {name: array.astype(dtype) for name, array in _TENSORS.items()}
  parameters, _ = _read(tensors)
  assert {p.dtype for p in parameters.values()} == {np.dtype(np.float32)}
  assert parameters["dense/kernel"][1, 2] == 5.0


def test_a_leftover_is_refused_by_name_unless_known_or_allowed():
  tensors = {**_TENSORS, "head.weight": np.zeros((4, 5), np.float32)}
  with pytest.raises(ConversionError, match=r"head\.weight \[4, 5\]") as error:
    _read(tensors)
  assert "--allow_left" in str(error.value)
  _, report = _read(tensors, leftovers={r"head\..*": "of no use"})
  assert [tuple(row) for row in report.left] == [
    ("head.weight", (4, 5), "of no use")
  ]
  _, report = _read(tensors, left=[r"head\..*"])
  assert report.left[0].reason == "allowed by flag"
  with pytest.raises(ConversionError):
    _read(tensors, left=["head"])  # The whole name, not a part of it.


def test_a_missing_parameter_is_refused_by_name_unless_expected_or_allowed():
  tensors = {"dense.weight": _TENSORS["dense.weight"]}
  with pytest.raises(ConversionError, match=r"norm/scale \[3\]") as error:
    _read(tensors)
  assert "--allow_fresh" in str(error.value)
  parameters, report = _read(tensors, fresh={"norm/.*": "none was stored"})
  assert parameters.keys() == {"dense/kernel"}
  assert [tuple(row) for row in report.fresh] == [
    ("norm/scale", (3,), "none was stored")
  ]


def test_another_shape_is_refused_with_both_unless_both_are_allowed():
  shapes = {**_SHAPES, "dense/kernel": (2, 4)}
  with pytest.raises(ConversionError) as error:
    _read(_TENSORS, shapes=shapes)
  assert "dense.weight [3, 2], where dense/kernel wants [4, 2]" in str(
    error.value
  )
  with pytest.raises(ConversionError):
    _read(_TENSORS, shapes=shapes, left=["dense.*"])
  parameters, report = read_parameters(
    [Feed(DictSource(_TENSORS), _RULES)],
    shapes,
    expected_fresh={},
    allowance=Allowance(left=["dense.*"], fresh=["dense/.*"]),
  )
  assert parameters.keys() == {"norm/scale"}
  assert [row.name for row in report.left] == ["dense.weight"]
  assert [row.name for row in report.fresh] == ["dense/kernel"]


def test_copies_must_be_equal():
  same = {**_TENSORS, "norm.weight": np.ones(3, np.float32)}
  _, report = _read(same)
  assert report.mapped[1].reason == "norm.weight"
  assert [tuple(row) for row in report.left] == [
    ("norm.gamma", (3,), "the same as norm.weight")
  ]
  other = {**_TENSORS, "norm.weight": np.zeros(3, np.float32)}
  with pytest.raises(ConversionError, match=r"norm\.gamma and norm\.weight"):
    _read(other)
  parameters, report = _read(other, left=[r"norm\.gamma"])
  assert not parameters["norm/scale"].any()
  assert [row.name for row in report.left] == ["norm.gamma"]


@pytest.mark.parametrize(
  ("array", "said"),
  [
    (np.ones(3, np.int8), "int8"),
    (np.array([1, np.nan, 1], np.float32), "NaN"),
  ],
)
def test_what_are_no_weights_is_refused(array, said):
  with pytest.raises(ConversionError, match=said):
    _read({**_TENSORS, "norm.gamma": array})


def test_a_pattern_that_cannot_be_read_is_refused():
  with pytest.raises(ConversionError, match="--allow_left"):
    Allowance(left=["("])
