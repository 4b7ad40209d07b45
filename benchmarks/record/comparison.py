"""Outputs of the two sides, compared by what they are."""

import dataclasses
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import jax
import numpy as np
import orbax.checkpoint as ocp

from benchmarks.record.sides import Side
from benchmarks.record.steps import DECIDED, Output, Step

# Values that depend on the machine's load, or on the process.
_OF_THE_MACHINE = re.compile(
  r"(^|[._])(seconds|ms|host|pid|time|wall|tflops|model_flops_utilization)"
  r"(?=$|[._])|per_second|_at$|^goodput$"
)
# A softmax cancels these, so that their gradients are rounding errors.
_CANCELLED = ("attention/key/bias", "span_head/norm/bias", "score/bias")
# How the trees of optimizers call Adam's first moment.
_FIRST_MOMENT = re.compile(r"(?:^|/)(?:mean|mu)/(.*)")
# A gradient this small beside the largest is the rounding of sums that are
# zero, such as that of the bias of attention's keys.
_ROUNDING = 1e-8
# Of a parameter's own largest entry, so that no small gradient goes unseen
# beside the large ones.
_OF_ITS_OWN = 1e-3
_NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Row:
  """One comparison.

  Attributes:
    step: Name of the step.
    what: What was compared.
    how: How, in words.
    num_compared: Number of files, arrays or values on both sides.
    difference: Largest relative difference; infinite where something is missing
      or another text.
    tolerance: Greatest one that counts as the same.
    where: Name of the file, array or value with that difference.
    decided: Reason of a difference that was decided, if this is one.
  """

  step: str
  what: str
  how: str
  num_compared: int
  difference: float
  tolerance: float
  where: str
  decided: str | None

  @property
  def is_same(self) -> bool:
    """Whether both sides agree within the tolerance."""
    return self.difference <= self.tolerance


@dataclasses.dataclass(frozen=True)
class _Compared:
  how: str
  differences: Mapping[str, float]


def compare(base: Side, now: Side, step: Step, output: Output) -> Row:
  """Compares one output of a step."""
  paths = base.out / output.path, now.out / output.path
  if absent := [path for path in paths if not path.exists()]:
    compared = _Compared("there or not", {f"no {absent[0]}": np.inf})
  else:
    compared = _COMPARISONS[output.kind](base, now, output)
  differences = compared.differences
  where = max(differences, key=lambda name: differences[name], default="")
  largest = float(differences[where]) if differences else np.inf
  name = f"{step.name}: {output.what}"
  decided = next(
    (why for names, why in DECIDED.items() if re.fullmatch(names, name)), None
  )
  return Row(
    step=step.name,
    what=output.what,
    how=compared.how,
    num_compared=len(differences),
    difference=largest,
    tolerance=output.tolerance,
    where=where if largest else "",
    decided=decided,
  )


def _bytes(base: Side, now: Side, output: Output) -> _Compared:
  sums = [_checksums(side.out / output.path) for side in (base, now)]
  return _Compared(
    "SHA-256 of each file",
    {
      name: 0.0 if sums[0].get(name) == sums[1].get(name) else np.inf
      for name in sorted(sums[0].keys() | sums[1].keys())
    },
  )


def _checksums(folder: Path) -> dict[str, str]:
  return {
    str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }


def _array(base: Side, now: Side, output: Output) -> _Compared:
  one, other = ({"": np.load(side.out / output.path)} for side in (base, now))
  return _Compared("of the largest number", _of_the_largest(one, other))


def _parameters(base: Side, now: Side, output: Output) -> _Compared:
  """Compares those that are trained; the others only gather rounding."""
  one, other = (
    _restored(side.out / output.path, ("retriever", "reader"))
    for side in (base, now)
  )
  how = "of the largest entry of all"
  if output.gradient is not None:
    gradient = _gradient(base.out / output.gradient)
    least = _ROUNDING * _largest(gradient)
    untrained = {n for n, g in gradient.items() if np.abs(g).max() <= least}
    one, other = (
      {name: a for name, a in side.items() if name not in untrained}
      for side in (one, other)
    )
    how += f", without {len(untrained)} whose gradient is rounding"
  return _Compared(how, _of_the_largest(one, other))


def _gradients(base: Side, now: Side, output: Output) -> _Compared:
  """Compares by all gradients' largest entry, and by each one's own."""
  one, other = (_gradient(side.out / output.path) for side in (base, now))
  differences = _of_the_largest(one, other)
  largest = _largest(one)
  for name, difference in differences.items():
    if name.endswith(_CANCELLED):
      continue
    if _ROUNDING < difference <= output.tolerance and (
      difference * largest > _OF_ITS_OWN * np.abs(one[name]).max()
    ):
      differences[name] = np.inf
  return _Compared(
    f"of the largest entry of all; and {_OF_ITS_OWN:g} of its own largest",
    differences,
  )


def _values(base: Side, now: Side, output: Output) -> _Compared:
  one, other = (
    dict(_leaves(_read(side, base, output))) for side in (base, now)
  )
  scales: dict[str, float] = defaultdict(float)
  for name, value in one.items():
    if _is_number(value):
      field = _field(name)
      scales[field] = max(scales[field], abs(value))
  differences = {}
  for name, value in one.items():
    if _OF_THE_MACHINE.search(name):
      continue
    found = other.get(name)
    difference = 0.0 if name in other and value == found else np.inf
    if difference and _is_number(value) and _is_number(found):
      both_nan = np.isnan(value) and np.isnan(found)
      apart = abs(float(value) - float(found))
      difference = 0.0 if both_nan else apart / (scales[_field(name)] or 1.0)
    differences[name] = np.inf if np.isnan(difference) else float(difference)
  return _Compared("of the field's largest number; texts exactly", differences)


_COMPARISONS: Mapping[str, Callable[[Side, Side, Output], _Compared]] = {
  "bytes": _bytes,
  "array": _array,
  "values": _values,
  "gradient": _gradients,
  "parameters": _parameters,
}


def _largest(arrays: Arrays) -> float:
  return max((float(np.abs(a).max()) for a in arrays.values()), default=0.0)


def _of_the_largest(one: Arrays, other: Arrays) -> dict[str, float]:
  """Returns differences relative to the largest entry of all of `one`."""
  largest = _largest(one) or 1.0
  differences = {}
  for name in sorted(one.keys() | other.keys()):
    pair = one.get(name), other.get(name)
    if pair[0] is None or pair[1] is None or pair[0].shape != pair[1].shape:
      differences[name] = np.inf
      continue
    apart = np.abs(pair[0].astype(np.float64) - pair[1].astype(np.float64))
    worst = float(apart.max(initial=0.0)) / largest
    differences[name] = np.inf if np.isnan(worst) else worst
  return differences


def _gradient(checkpoint: Path) -> Arrays:
  """Returns Adam's first moments, which step 1 has made of the gradient."""
  found = {}
  for name, array in _restored(checkpoint, ("optimizer",)).items():
    if match := _FIRST_MOMENT.search(name):
      found[match[1]] = array
  if not found:
    raise ValueError(f"{checkpoint}: no first moments in its optimizer")
  return found


def _restored(checkpoint: Path, items: tuple[str, ...]) -> Arrays:
  """Returns items of an orbax checkpoint as arrays by their paths."""
  arrays = {}
  with ocp.StandardCheckpointer() as checkpointer:
    for item in items:
      # A stage may train one of them alone.
      if not (checkpoint / item).exists():
        continue
      tree = checkpointer.restore(checkpoint / item)
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        within = name if item == "optimizer" else f"{item}/{name}"
        arrays[within] = np.asarray(leaf)
  return arrays


def _read(side: Side, base: Side, output: Output) -> Any:
  """Returns what a file says, without the names of the sides' folders."""
  path = side.out / output.path
  text = path.read_text(encoding="utf-8")
  for folder in (side.out, base.out):
    text = text.replace(str(folder), "{out}")
  if path.suffix == ".json":
    return json.loads(text)
  lines = text.splitlines()
  if path.suffix == ".jsonl":
    return [json.loads(line) for line in lines]
  return [
    [float(part) if _NUMBER.fullmatch(part) else part for part in parts]
    for parts in (re.split(f"({_NUMBER.pattern})", line) for line in lines)
  ]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from _leaves(inner, f"{name}.{key}" if name else str(key))
  elif isinstance(value, list):
    for place, inner in enumerate(value):
      yield from _leaves(inner, f"{name}[{place}]")
  else:
    yield name, value


def _field(name: str) -> str:
  return re.sub(r"\[\d+\]", "[]", name)


def _is_number(value: Any) -> TypeGuard[float]:
  return isinstance(value, (int, float)) and not isinstance(value, bool)
