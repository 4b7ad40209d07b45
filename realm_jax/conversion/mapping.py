"""Foreign tensors to parameters.

Names and shapes are checked completely before anything large is read.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.names import Rule
from realm_jax.indexes.protocol import Rows

Shape = tuple[int, ...]

_NAMES_IN_AN_ERROR = 20
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


@runtime_checkable
class TensorSource(Protocol):
  """Named tensors of a foreign checkpoint, read one at a time."""

  @property
  def shapes(self) -> Mapping[str, Shape]:
    """The shape of every tensor, by its name in the file."""
    ...

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor in its stored dtype; bfloat16 is that of ml_dtypes."""
    ...

  def rows(self, name: str) -> Rows:
    """Returns a tensor that is read in slices, as block vectors are.

    Where the file format allows it, the tensor need not fit in memory.
    """
    ...


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
  """Misfits that the user accepts, by regular expressions.

  Attributes:
    left: Regular expression for whole names of tensors that may stay unused.
    fresh: Regular expression for whole paths of parameters that may start from
      random values.
  """

  left: Sequence[str] = ()
  fresh: Sequence[str] = ()

  def __post_init__(self) -> None:
    for flag, patterns in vars(self).items():
      for pattern in patterns:
        try:
          re.compile(pattern)
        except re.error as error:
          raise ConversionError(
            f"--allow_{flag}={pattern} is no regular expression: {error}"
          ) from error


class Row(NamedTuple):
  """A line of a report: a parameter or a tensor, and what became of it."""

  name: str
  shape: Shape
  reason: str

  def __str__(self) -> str:
    return f"{self.name} {show_shape(self.shape)}"


@dataclasses.dataclass(frozen=True)
class Report:
  """What an import did with every tensor and every parameter.

  Attributes:
    mapped: Parameters; the reason is the name of the tensor, with that of its
      checkpoint if there are several.
    left: Tensors that are not used.
    fresh: Parameters that start from random values.
  """

  mapped: tuple[Row, ...]
  left: tuple[Row, ...]
  fresh: tuple[Row, ...]

  def table(self) -> str:
    """Returns a line for each tensor and parameter, for people."""
    lines = [f"mapped ({len(self.mapped)} parameters):"]
    lines += [f"  {row} <- {row.reason}" for row in self.mapped]
    for title, rows in (
      ("left unused (tensors of the input)", self.left),
      ("randomly initialized (parameters)", self.fresh),
    ):
      lines.append(f"{title}: {len(rows) or 'none'}")
      lines += [f"  {row}: {row.reason}" for row in rows]
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
  """Reads all parameters that the feeds hold, in float32 and by path.

  Those that the report calls fresh are not among them.

  Args:
    feeds: Foreign checkpoints.
    shapes: Shapes of all parameters of the model, by path.
    expected_fresh: Reasons why parameters that no feed has start from random
      values, by a regular expression for the whole path. Any other missing
      parameter is an error.
    allowance: Misfits that the user accepts.

  Raises:
    ConversionError: If a tensor is left over, missing, of another shape, not
      of floats, not finite, or differs from its copy.
  """
  matching = _Matching(shapes, allowance or Allowance())
  for feed in feeds:
    matching.add(feed)
  fresh = matching.missing(expected_fresh)
  matching.raise_misfits()
  has_several = len({m.feed.where for m in matching.matches.values()}) > 1
  parameters, mapped = {}, []
  for path, match in matching.matches.items():
    feed, name = match.feed, match.names[0]
    array = feed.source.read(name)
    for copy in match.names[1:]:
      matching.leave_copy(feed, copy, array, name)
    parameters[path] = _as_parameter(array, match)
    origin = f"{name} ({feed.where})" if has_several else name
    mapped.append(Row(path, shapes[path], origin))
  left = tuple(matching.left.values())
  return parameters, Report(tuple(mapped), left, tuple(fresh))


class _Match(NamedTuple):
  """The tensors of a feed that hold one parameter: one and its copies."""

  feed: Feed
  rule: Rule
  names: list[str]


def _as_parameter(array: np.ndarray, match: _Match) -> np.ndarray:
  where = f"{match.names[0]} of {match.feed.where}"
  # numpy does not count bfloat16 among its floats.
  if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
    raise ConversionError(
      f"{where} holds {array.dtype}; want float32, float16 or bfloat16 "
      "(quantized weights must be dequantized first)"
    )
  array = array.astype(np.float32)
  if not np.isfinite(array).all():
    raise ConversionError(
      f"{where} holds NaN or infinite values; the file is damaged or its "
      "training had diverged"
    )
  array = array.T if match.rule.transpose else array
  return np.ascontiguousarray(array / np.float32(match.rule.scale))


def _reason(reasons: Mapping[str, str], name: str) -> str:
  """Returns the reason for a tensor or parameter; empty if there is none."""
  for pattern, reason in reasons.items():
    if re.fullmatch(pattern, name):
      return reason
  return ""


class _Matching:
  """Matches tensors with parameters by name and shape.

  Misfits are collected, so that one error can name them all.
  """

  def __init__(self, shapes: Mapping[str, Shape], allowance: Allowance):
    self._shapes = shapes
    self._may_stay = dict.fromkeys(allowance.left, "allowed by flag")
    self._may_start = dict.fromkeys(allowance.fresh, "allowed by flag")
    self.matches: dict[str, _Match] = {}
    # By feed and name: several rules may have one tensor.
    self.left: dict[tuple[int, str], Row] = {}
    self._misshapen: set[str] = set()
    titles = (_NO_PLACE, _NO_TENSOR, _MISSHAPEN, _MISSHAPEN_COPY)
    self._misfits: dict[str, list[str]] = {title: [] for title in titles}

  def add(self, feed: Feed) -> None:
    """Matches the tensors of a feed."""
    shapes = feed.source.shapes
    used: set[str] = set()
    for rule in feed.rules:
      present = [name for name in rule.names if name in shapes]
      used.update(present)
      shape = self._shapes[rule.path]
      wanted = shape[::-1] if rule.transpose else shape
      fitting = [name for name in present if shapes[name] == wanted]
      for name in sorted(set(present) - set(fitting)):
        self._add_misshapen(feed, name, rule.path, wanted, bool(fitting))
      if fitting:
        self.matches[rule.path] = _Match(feed, rule, fitting)
    for name in (name for name in shapes if name not in used):
      reason = _reason(feed.leftovers, name)
      self.leave(feed, name, reason or _reason(self._may_stay, name))

  def leave(self, feed: Feed, name: str, reason: str) -> None:
    """Notes a tensor that is not used; without a reason it is a misfit."""
    row = Row(name, feed.source.shapes[name], reason)
    self.left[id(feed), name] = row
    if not reason:
      self._misfits[_NO_PLACE].append(str(row))

  def leave_copy(
    self, feed: Feed, copy: str, array: np.ndarray, name: str
  ) -> None:
    """Notes a copy, most often a tied decoder's, of the tensor that is used."""
    reason = _reason(self._may_stay, copy)
    if np.array_equal(array, feed.source.read(copy)):
      reason = f"the same as {name}"
    if not reason:
      raise ConversionError(
        f"{copy} and {name} are one parameter here, and differ in "
        f"{feed.where}; pass --allow_left='{re.escape(copy)}' to leave the "
        "former out"
      )
    self.leave(feed, copy, reason)

  def _add_misshapen(
    self, feed: Feed, name: str, path: str, wanted: Shape, is_copy: bool
  ) -> None:
    """Notes a tensor of another shape; `is_copy` if another one fits."""
    self._misshapen.add(path)
    reason = _reason(self._may_stay, name)
    if not is_copy:
      reason = reason and _reason(self._may_start, path)
    if reason:
      self.leave(feed, name, reason)
      return
    self._misfits[_MISSHAPEN_COPY if is_copy else _MISSHAPEN].append(
      f"{name} {show_shape(feed.source.shapes[name])}, where {path} wants "
      f"{show_shape(wanted)}"
    )

  def missing(self, expected: Mapping[str, str]) -> list[Row]:
    """Returns the parameters that no feed has, with the reasons."""
    fresh = []
    for path in (path for path in self._shapes if path not in self.matches):
      reason = _reason(expected, path) or _reason(self._may_start, path)
      fresh.append(Row(path, self._shapes[path], reason))
      if not reason and path not in self._misshapen:
        self._misfits[_NO_TENSOR].append(str(fresh[-1]))
    return fresh

  def raise_misfits(self) -> None:
    """Raises `ConversionError` if any tensor or parameter does not fit."""
    parts = []
    for title, lines in self._misfits.items():
      if not lines:
        continue
      shown = [f"  {line}" for line in lines[:_NAMES_IN_AN_ERROR]]
      if len(lines) > len(shown):
        shown.append(f"  and {len(lines) - len(shown)} more")
      parts.append("\n".join([f"{len(lines)} {title}:", *shown]))
    if parts:
      raise ConversionError("the weights do not fit. " + "\n".join(parts))
