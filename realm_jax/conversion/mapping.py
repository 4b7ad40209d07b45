"""Applies rules: foreign tensors to parameters, and parameters to tensors.

All is checked by name and shape before anything large is read.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.names import Rule
from realm_jax.conversion.tensors import TensorSource

Shape = tuple[int, ...]

_NAMES_IN_AN_ERROR = 20
_BY_FLAG = "allowed by flag"


@dataclasses.dataclass(frozen=True)
class Feed:
  """A foreign checkpoint, and what is taken from it.

  Attributes:
    source: its tensors.
    rules: of the parameters that it gives; several may name one tensor.
    leftovers: why tensors that no rule names are of no use here, by a regular
      expression for the whole name. Any other is an error.
    where: what to call it; shown where there are several.
  """

  source: TensorSource
  rules: tuple[Rule, ...]
  leftovers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  where: str = "the input"


@dataclasses.dataclass(frozen=True)
class Allowance:
  """What a user lets pass, by regular expressions for whole names.

  Attributes:
    left: tensors that may stay unused.
    fresh: parameters that may be initialised afresh.
  """

  left: Sequence[str] = ()
  fresh: Sequence[str] = ()

  def __post_init__(self):
    for flag, patterns in (("left", self.left), ("fresh", self.fresh)):
      for pattern in patterns:
        try:
          re.compile(pattern)
        except re.error as error:
          raise ConversionError(
            f"--allow_{flag}={pattern} is no regular expression: {error}"
          ) from error


class Mapped(NamedTuple):
  """A parameter, the tensor that it is, and where that was found."""

  path: str
  shape: Shape
  name: str
  where: str


class Left(NamedTuple):
  """A tensor that nothing here uses, and why that is no error."""

  name: str
  shape: Shape
  reason: str


class Fresh(NamedTuple):
  """A parameter that starts from random values, and why."""

  path: str
  shape: Shape
  reason: str


@dataclasses.dataclass(frozen=True)
class Report:
  """What an import did with every tensor and every parameter."""

  mapped: tuple[Mapped, ...]
  left: tuple[Left, ...]
  fresh: tuple[Fresh, ...]

  def table(self) -> str:
    """One line for each tensor and parameter, for people."""
    wheres = dict.fromkeys(m.where for m in self.mapped)
    lines = [f"mapped ({len(self.mapped)} parameters):"]
    for m in self.mapped:
      place = f" ({m.where})" if len(wheres) > 1 else ""
      lines.append(f"  {m.path} {show_shape(m.shape)} <- {m.name}{place}")
    for title, rows in (
      ("left unused (tensors of the input)", self.left),
      ("initialised afresh (parameters)", self.fresh),
    ):
      lines.append(f"{title}: {len(rows) or 'none'}")
      lines += [f"  {name} {show_shape(s)}: {why}" for name, s, why in rows]
    return "\n".join(lines)


def show_shape(shape: Shape) -> str:
  """`[30522, 768]`."""
  return str(list(shape))


def read_parameters(
  feeds: Sequence[Feed],
  shapes: Mapping[str, Shape],
  *,
  expected_fresh: Mapping[str, str],
  allowance: Allowance | None = None,
) -> tuple[dict[str, np.ndarray], Report]:
  """Reads all parameters that the feeds hold, in float32.

  Args:
    feeds: where they come from.
    shapes: of all parameters that the model has, by path.
    expected_fresh: why parameters that no feed has start afresh, by a regular
      expression for the whole path. Any other is an error, …
    allowance: … as any leftover is, unless the user allows it.

  Returns:
    The parameters found, by path, and the report. Those that the report calls
    fresh are not among them.

  Raises:
    ConversionError: a tensor is left over, missing, of another shape, not of
      floats, not finite, or differs from its copy.
  """
  allowance = allowance or Allowance()
  problems = _Problems(allowance)
  found: dict[str, tuple[int, Rule, list[str]]] = {}
  # By feed and name: several rules may have one tensor.
  left: dict[tuple[int, str], Left] = {}
  misshapen: dict[str, str] = {}
  for place, feed in enumerate(feeds):
    used: set[str] = set()
    for rule in feed.rules:
      present = [name for name in rule.names if name in feed.source.shapes]
      used.update(present)
      wanted = _stored_shape(shapes[rule.path], rule)
      fitting = [n for n in present if feed.source.shapes[n] == wanted]
      for name in sorted(set(present) - set(fitting)):
        shape = feed.source.shapes[name]
        reason = problems.misshapen(
          name, shape, rule.path, wanted, is_copy=bool(fitting)
        )
        if reason:
          left[place, name] = Left(name, shape, reason)
        misshapen[rule.path] = name
      if fitting:
        found[rule.path] = (place, rule, fitting)
    for name, shape in feed.source.shapes.items():
      if name not in used:
        reason = _reason(feed.leftovers, name) or problems.left(name, shape)
        left[place, name] = Left(name, shape, reason)
  fresh = [
    Fresh(
      path,
      shape,
      _reason(expected_fresh, path)
      or problems.fresh(path, shape, is_misshapen=path in misshapen),
    )
    for path, shape in shapes.items()
    if path not in found
  ]
  problems.raise_any()

  parameters, mapped = {}, []
  for path, (place, rule, names) in found.items():
    feed = feeds[place]
    array = feed.source.read(names[0])
    for copy in names[1:]:
      # A tied decoder, most often.
      reason = f"the same as {names[0]}"
      if not np.array_equal(array, feed.source.read(copy)):
        reason = _reason(dict.fromkeys(allowance.left, _BY_FLAG), copy)
      if not reason:
        raise ConversionError(
          f"{copy} and {names[0]} are one parameter here, and differ in "
          f"{feed.where}; pass --allow_left='{re.escape(copy)}' to leave "
          "the former out"
        )
      left[place, copy] = Left(copy, feed.source.shapes[copy], reason)
    parameters[path] = _as_parameter(array, rule, names[0], feed.where)
    mapped.append(Mapped(path, shapes[path], names[0], feed.where))
  return parameters, Report(tuple(mapped), tuple(left.values()), tuple(fresh))


def write_tensors(
  parameters: Mapping[str, np.ndarray], rules: Iterable[Rule]
) -> dict[str, np.ndarray]:
  """The tensors of another system, by name.

  Args:
    parameters: by path; those that no rule names are left out.
    rules: of parameters that are all there.
  """
  tensors = {}
  for rule in rules:
    array = np.asarray(parameters[rule.path])
    tensors[rule.names[0]] = np.ascontiguousarray(
      array.T if rule.transpose else array
    )
  return tensors


def _stored_shape(shape: Shape, rule: Rule) -> Shape:
  return shape[::-1] if rule.transpose else shape


def _as_parameter(
  array: np.ndarray, rule: Rule, name: str, where: str
) -> np.ndarray:
  # numpy does not count bfloat16 among its floats.
  if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
    raise ConversionError(
      f"{name} of {where} holds {array.dtype}; want float32, float16 or "
      "bfloat16 (quantized weights must be dequantized first)"
    )
  array = array.astype(np.float32)
  if not np.isfinite(array).all():
    raise ConversionError(
      f"{name} of {where} holds NaN or infinite values; the file is damaged "
      "or its training had diverged"
    )
  return np.ascontiguousarray(array.T if rule.transpose else array)


def _reason(reasons: Mapping[str, str], name: str) -> str:
  for pattern, reason in reasons.items():
    if re.fullmatch(pattern, name):
      return reason
  return ""


class _Problems:
  """Collects what does not fit, so that one error names it all."""

  def __init__(self, allowance: Allowance):
    self._left_allowed = dict.fromkeys(allowance.left, _BY_FLAG)
    self._fresh_allowed = dict.fromkeys(allowance.fresh, _BY_FLAG)
    self._left: list[str] = []
    self._fresh: list[str] = []
    self._misshapen: list[str] = []
    self._misshapen_copies: list[str] = []

  def left(self, name: str, shape: Shape) -> str:
    reason = _reason(self._left_allowed, name)
    if not reason:
      self._left.append(f"{name} {show_shape(shape)}")
    return reason

  def fresh(self, path: str, shape: Shape, *, is_misshapen: bool) -> str:
    reason = _reason(self._fresh_allowed, path)
    if not reason and not is_misshapen:
      self._fresh.append(f"{path} {show_shape(shape)}")
    return reason

  def misshapen(
    self, name: str, shape: Shape, path: str, wanted: Shape, *, is_copy: bool
  ) -> str:
    """Why it may stay unused; `is_copy` if another gives the parameter."""
    reason = _reason(self._left_allowed, name)
    if not is_copy:
      reason = reason and _reason(self._fresh_allowed, path)
    if not reason:
      line = (
        f"{name} {show_shape(shape)}, where {path} wants {show_shape(wanted)}"
      )
      (self._misshapen_copies if is_copy else self._misshapen).append(line)
    return reason

  def raise_any(self) -> None:
    parts = [
      f"{len(lines)} {title}:\n" + _shown(lines)
      for lines, title in (
        (
          self._left,
          "tensors of the input have no place here; --allow_left=REGEX (for "
          "whole names) leaves them out",
        ),
        (
          self._fresh,
          "parameters have no tensor in the input; --allow_fresh=REGEX (for "
          "whole paths) starts them from random values",
        ),
        (
          self._misshapen,
          "tensors have another shape; is config.json that of these weights? "
          "--allow_left=REGEX for the tensor together with "
          "--allow_fresh=REGEX for the parameter goes on without it",
        ),
        (
          self._misshapen_copies,
          "tensors have another shape than the one that they should be a copy "
          "of; --allow_left=REGEX leaves them out",
        ),
      )
      if lines
    ]
    if parts:
      raise ConversionError("the weights do not fit. " + "\n".join(parts))


def _shown(lines: Sequence[str]) -> str:
  shown = [f"  {line}" for line in lines[:_NAMES_IN_AN_ERROR]]
  if len(lines) > len(shown):
    shown.append(f"  and {len(lines) - len(shown)} more")
  return "\n".join(shown)
