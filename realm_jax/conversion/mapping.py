"""Foreign tensors to parameters, and parameters to foreign tensors.

Names and shapes are checked completely before anything large is read.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.names import Rule
from realm_jax.conversion.tensors import Shape, TensorSource

_NAMES_IN_AN_ERROR = 20
_BY_FLAG = "allowed by flag"
_NO_PLACE = (
  "tensors of the input have no place here; --allow_left=REGEX (for whole "
  "names) leaves them out"
)
_NO_TENSOR = (
  "parameters have no tensor in the input; --allow_fresh=REGEX (for whole "
  "paths) starts them from random values"
)
_MISSHAPEN = (
  "tensors have another shape; is config.json that of these weights? "
  "--allow_left=REGEX for the tensor together with --allow_fresh=REGEX for the "
  "parameter leaves it out and starts the parameter from random values"
)
_MISSHAPEN_COPY = (
  "tensors have another shape than the one that they should be a copy of; "
  "--allow_left=REGEX leaves them out"
)


@dataclasses.dataclass(frozen=True)
class Feed:
  """A foreign checkpoint, and what is taken from it.

  Attributes:
    source: Tensors of the checkpoint.
    rules: Rules of the parameters that it holds; several may name one tensor.
    leftovers: Reasons why tensors that no rule names are of no use here, by a
      regular expression for the whole name. Any other such tensor is an error.
    where: Name of the checkpoint; the report shows it if there are several.
  """

  source: TensorSource
  rules: tuple[Rule, ...]
  leftovers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  where: str = "the input"


@dataclasses.dataclass(frozen=True)
class Allowance:
  """Misfits that the user accepts, by regular expressions for whole names.

  Attributes:
    left: Tensors that may stay unused.
    fresh: Parameters that may start from random values.
  """

  left: Sequence[str] = ()
  fresh: Sequence[str] = ()

  def __post_init__(self) -> None:
    for flag, patterns in (("left", self.left), ("fresh", self.fresh)):
      for pattern in patterns:
        try:
          re.compile(pattern)
        except re.error as error:
          raise ConversionError(
            f"--allow_{flag}={pattern} is no regular expression: {error}"
          ) from error

  def reason_to_leave(self, name: str) -> str:
    """Returns why a tensor may stay unused; empty if it may not."""
    return _reason(dict.fromkeys(self.left, _BY_FLAG), name)

  def reason_to_start(self, path: str) -> str:
    """Returns why a parameter may be random; empty if it may not."""
    return _reason(dict.fromkeys(self.fresh, _BY_FLAG), path)


class Mapped(NamedTuple):
  """A parameter, the name of its tensor, and the checkpoint that has it."""

  path: str
  shape: Shape
  name: str
  where: str


class Unmapped(NamedTuple):
  """A tensor that is not used, or a random parameter, and the reason."""

  name: str
  shape: Shape
  reason: str


@dataclasses.dataclass(frozen=True)
class Report:
  """What an import did with every tensor and every parameter."""

  mapped: tuple[Mapped, ...]
  left: tuple[Unmapped, ...]
  fresh: tuple[Unmapped, ...]

  def table(self) -> str:
    """Returns a line for each tensor and parameter, for people."""
    wheres = dict.fromkeys(m.where for m in self.mapped)
    lines = [f"mapped ({len(self.mapped)} parameters):"]
    for m in self.mapped:
      where = f" ({m.where})" if len(wheres) > 1 else ""
      lines.append(f"  {m.path} {show_shape(m.shape)} <- {m.name}{where}")
    for title, rows in (
      ("left unused (tensors of the input)", self.left),
      ("randomly initialized (parameters)", self.fresh),
    ):
      lines.append(f"{title}: {len(rows) or 'none'}")
      lines += [f"  {name} {show_shape(s)}: {why}" for name, s, why in rows]
    return "\n".join(lines)


def show_shape(shape: Shape) -> str:
  """Returns a shape for people, such as `[30522, 768]`."""
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
    feeds: Foreign checkpoints.
    shapes: Shapes of all parameters of the model, by path.
    expected_fresh: Reasons why parameters that no feed has start from random
      values, by a regular expression for the whole path. Any other missing
      parameter is an error.
    allowance: Misfits that the user accepts.

  Returns:
    The parameters found, by path, and the report. Those that the report calls
    fresh are not among them.

  Raises:
    ConversionError: If a tensor is left over, missing, of another shape, not
      of floats, not finite, or differs from its copy.
  """
  allowance = allowance or Allowance()
  matching = _Matching(shapes, allowance)
  for feed in feeds:
    matching.add(feed)
  fresh = matching.missing(expected_fresh)
  matching.raise_misfits()
  parameters, mapped = {}, []
  for path, match in matching.matches.items():
    feed, name = match.feed, match.names[0]
    array = feed.source.read(name)
    for copy in match.names[1:]:
      reason = _reason_to_leave_copy(array, match, copy, allowance)
      matching.leave(feed, copy, reason)
    parameters[path] = _as_parameter(array, match.rule, name, feed.where)
    mapped.append(Mapped(path, shapes[path], name, feed.where))
  left = tuple(matching.left.values())
  return parameters, Report(tuple(mapped), left, tuple(fresh))


def write_tensors(
  parameters: Mapping[str, np.ndarray], rules: Iterable[Rule]
) -> dict[str, np.ndarray]:
  """Returns the tensors of another system, by name.

  Args:
    parameters: Parameters by path; those that no rule names are left out.
    rules: Rules of the tensors to write.
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


class _Match(NamedTuple):
  """The tensors of a feed that hold one parameter: one and its copies."""

  feed: Feed
  rule: Rule
  names: list[str]


def _reason_to_leave_copy(
  array: np.ndarray, match: _Match, copy: str, allowance: Allowance
) -> str:
  """Compares a copy, most often a tied decoder's, with the tensor itself."""
  name, feed = match.names[0], match.feed
  if np.array_equal(array, feed.source.read(copy)):
    return f"the same as {name}"
  if reason := allowance.reason_to_leave(copy):
    return reason
  raise ConversionError(
    f"{copy} and {name} are one parameter here, and differ in {feed.where}; "
    f"pass --allow_left='{re.escape(copy)}' to leave the former out"
  )


class _Matching:
  """Matches tensors with parameters by name and shape.

  Misfits are collected, so that one error can name them all.
  """

  def __init__(self, shapes: Mapping[str, Shape], allowance: Allowance):
    self._shapes = shapes
    self._allowance = allowance
    self.matches: dict[str, _Match] = {}
    # By feed and name: several rules may have one tensor.
    self.left: dict[tuple[int, str], Unmapped] = {}
    self._misshapen: set[str] = set()
    self._misfits: dict[str, list[str]] = {
      _NO_PLACE: [],
      _NO_TENSOR: [],
      _MISSHAPEN: [],
      _MISSHAPEN_COPY: [],
    }

  def add(self, feed: Feed) -> None:
    """Matches the tensors of a feed."""
    used: set[str] = set()
    for rule in feed.rules:
      present = [name for name in rule.names if name in feed.source.shapes]
      used.update(present)
      wanted = _stored_shape(self._shapes[rule.path], rule)
      fitting = [n for n in present if feed.source.shapes[n] == wanted]
      for name in sorted(set(present) - set(fitting)):
        self._add_misshapen(feed, name, rule, is_copy=bool(fitting))
      if fitting:
        self.matches[rule.path] = _Match(feed, rule, fitting)
    for name, shape in feed.source.shapes.items():
      if name not in used:
        reason = _reason(feed.leftovers, name)
        reason = reason or self._allowance.reason_to_leave(name)
        if not reason:
          self._misfits[_NO_PLACE].append(f"{name} {show_shape(shape)}")
        self.leave(feed, name, reason)

  def leave(self, feed: Feed, name: str, reason: str) -> None:
    """Notes a tensor that is not used."""
    shape = feed.source.shapes[name]
    self.left[id(feed), name] = Unmapped(name, shape, reason)

  def _add_misshapen(
    self, feed: Feed, name: str, rule: Rule, *, is_copy: bool
  ) -> None:
    """Notes a tensor of another shape; `is_copy` if another one fits."""
    self._misshapen.add(rule.path)
    reason = self._allowance.reason_to_leave(name)
    if not is_copy:
      reason = reason and self._allowance.reason_to_start(rule.path)
    if reason:
      self.leave(feed, name, reason)
      return
    wanted = _stored_shape(self._shapes[rule.path], rule)
    self._misfits[_MISSHAPEN_COPY if is_copy else _MISSHAPEN].append(
      f"{name} {show_shape(feed.source.shapes[name])}, where {rule.path} wants "
      f"{show_shape(wanted)}"
    )

  def missing(self, expected: Mapping[str, str]) -> list[Unmapped]:
    """Returns the parameters that no feed has, with the reasons."""
    fresh = []
    for path, shape in self._shapes.items():
      if path in self.matches:
        continue
      reason = _reason(expected, path) or self._allowance.reason_to_start(path)
      if not reason and path not in self._misshapen:
        self._misfits[_NO_TENSOR].append(f"{path} {show_shape(shape)}")
      fresh.append(Unmapped(path, shape, reason))
    return fresh

  def raise_misfits(self) -> None:
    """Raises `ConversionError` if any tensor or parameter does not fit."""
    parts = [
      f"{len(lines)} {title}:\n{_shown(lines)}"
      for title, lines in self._misfits.items()
      if lines
    ]
    if parts:
      raise ConversionError("the weights do not fit. " + "\n".join(parts))


def _shown(lines: Sequence[str]) -> str:
  shown = [f"  {line}" for line in lines[:_NAMES_IN_AN_ERROR]]
  if len(lines) > len(shown):
    shown.append(f"  and {len(lines) - len(shown)} more")
  return "\n".join(shown)
