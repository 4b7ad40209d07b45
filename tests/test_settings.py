"""Values of a configuration against settings."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import pytest
from etils import epath

from realm_jax import settings
from realm_jax.models.bert import BertConfig


class _Opaque(Protocol):
  """A protocol that cannot be checked at run time."""


@pytest.mark.parametrize(
  ("annotation", "good", "bad", "words"),
  [
    (int, [3, -1], [1.5, True, "3", None], "an integer"),
    (float, [3, 0.5], [True, "3", None], "a number"),
    (bool, [True], [1, "True", None], "True or False"),
    (str, ["a"], [1, None, ["a"]], "a string"),
    (int | None, [3, None], ["3"], "an integer or None"),
    (Literal["a", "b"], ["a"], ["c", None], "'a' or 'b'"),
    (Sequence[str], [["a"], ("a",), []], ["a", ["a", 1]], "a list of strings"),
    (tuple[int, ...], [(1, 2), [1]], [1, ("a",)], "a list of integers"),
    (
      tuple[str, int | None],
      [("a", 1), ["a", None]],
      [("a",), (1, 1), ("a", "b"), ("a", 1, 1)],
      "(a string, an integer or None)",
    ),
    (Mapping[str, int], [{"a": 1}], [{"a": "b"}, 1], "a dictionary"),
    (epath.PathLike, ["a", epath.Path("a")], [1, None], "a string or a path"),
    (os.PathLike, [epath.Path("a")], ["a"], "a path"),
    (BertConfig, [BertConfig()], ["a"], "BertConfig"),
    (Any, ["a", None], [], "Any"),
    (_Opaque, ["a"], [], "_Opaque"),
  ],
)
def test_a_value_fits_its_annotation_or_not(annotation, good, bad, words):
  for value in good:
    assert settings.accepts(annotation, value)
  for value in bad:
    assert not settings.accepts(annotation, value)
  assert settings.describe(annotation) == words


def test_a_value_that_is_not_known_yet_fits():
  assert settings.accepts(Sequence[int], [1, settings.UNKNOWN])


def test_the_parameters_of_functions_and_classes():
  def function(number: int, name: "str | None" = None, anything=1) -> bool:
    return name is None and anything == number

  types = settings.parameter_types(function)
  assert (types["number"], types["name"]) == (int, str | None)
  assert "anything" not in types
  assert settings.parameter_types(BertConfig)["hidden_size"] is int
