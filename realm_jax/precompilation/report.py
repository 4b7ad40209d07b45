"""The figures of a recipe on a slice, as a table and as JSON."""

import dataclasses
from collections.abc import Sequence

from realm_jax.console import table
from realm_jax.files.json_value import JsonValue
from realm_jax.precompilation.chips import Chip
from realm_jax.precompilation.estimate import Estimate
from realm_jax.precompilation.programs.program import SEARCH, STEP
from realm_jax.precompilation.refresh_split import RefreshSplit

_UNKNOWN = "-"


@dataclasses.dataclass(frozen=True)
class Report:
  """What a recipe costs on a slice.

  Attributes:
    topology: Name of the slice.
    estimates: Estimates of its programs, in the order of the kinds; the steps
      from the most usual shape bucket to the largest.
    splits: Splits with a builder; the first is the one that was asked for.
    advice: Settings that would make it fit.
  """

  topology: str
  chip: Chip
  chips: int
  estimates: Sequence[Estimate]
  splits: Sequence[RefreshSplit] = ()
  advice: Sequence[str] = ()

  @property
  def usual(self) -> Estimate:
    """The program that a run mostly runs."""
    return self.estimates[0]

  @property
  def fits(self) -> bool:
    """Whether all programs fit, the steps beside an exact index's vectors."""
    beside = sum(
      e.compiled.argument_bytes
      for e in self.estimates
      if e.program.kind == SEARCH
    )
    return all(
      e.fits
      and (
        e.program.kind != STEP
        or e.compiled.total_bytes + beside <= self.chip.memory_bytes
      )
      for e in self.estimates
    )

  def json(self) -> JsonValue:
    """Returns the figures by name."""
    kind = self.usual.program.kind
    alike = [e for e in self.estimates if e.program.kind == kind]
    figures = _figures(self.usual)
    # Memory must hold the largest shape bucket.
    for name in ("argument_bytes", "temporary_bytes"):
      figures[name] = max(getattr(e.compiled, name) for e in alike)
    return {
      "topology": self.topology,
      **figures,
      "fits": self.fits,
      "chips": self.chips,
      "refresh": self._refresh(),
      "rolling_refresh": self._rolling_refresh(),
      "advice": list(self.advice),
      "programs": [
        {
          "kind": estimate.program.kind,
          "name": estimate.program.name,
          **_figures(estimate),
        }
        for estimate in self.estimates
      ],
    }

  def _refresh(self) -> JsonValue:
    if not self.splits:
      return None
    first = self.splits[0]
    figures = dataclasses.asdict(first)
    return {**figures, "staleness_steps": first.staleness_steps}

  def _rolling_refresh(self) -> dict[str, JsonValue] | None:
    steps, seconds = self.usual.program.round_steps, self.usual.seconds
    if steps is None:
      return None
    return {"steps": steps, "seconds": seconds and seconds * steps}

  def text(self) -> str:
    """Returns the figures as tables."""
    parts = [
      f"{self.topology}: {self.chips} chips, each with "
      f"{_gb(self.chip.memory_bytes)} GB for programs, "
      f"{self.chip.peak_flops / 1e12:.0f} TFLOP/s and "
      f"{self.chip.memory_bandwidth / 1e9:.0f} GB/s",
      table.columns([_HEADER, *map(_row, self.estimates)]),
      *filter(None, (_collectives(e) for e in self.estimates)),
      *filter(None, (_kernels(e) for e in self.estimates)),
      self._verdict(),
    ]
    if self.splits:
      parts.append(_splits(self.splits))
    if steps := self.usual.program.round_steps:
      takes = ""
      if self.usual.seconds is not None:
        takes = f", {steps * self.usual.seconds:.0f} s"
      parts.append(
        f"Every block is embedded again within {steps:,} steps{takes}."
      )
    return "\n\n".join(parts)

  def _verdict(self) -> str:
    if self.fits:
      return "It fits."
    if all(e.fits for e in self.estimates):
      return "It does not fit beside the vectors of an exact index."
    wrong = ", ".join(
      f"{e.program.kind} {e.program.name} "
      f"({_gb(e.compiled.total_bytes)} of {_gb(self.chip.memory_bytes)} GB)"
      for e in self.estimates
      if not e.fits
    )
    lines = [f"It does not fit: {wrong}.", *(f"  {a}" for a in self.advice)]
    return "\n".join(lines)


def _figures(estimate: Estimate) -> dict[str, JsonValue]:
  compiled, bounds = estimate.compiled, estimate.bounds
  return {
    "fits": estimate.fits,
    "chips": estimate.program.chips,
    "argument_bytes": compiled.argument_bytes,
    "temporary_bytes": compiled.temporary_bytes,
    "hbm_bytes": estimate.traffic_bytes,
    "accessed_bytes": compiled.accessed_bytes,
    "flops_per_chip": estimate.flops_per_chip,
    "cycles": estimate.cycles,
    "bounds_seconds": None if bounds is None else dataclasses.asdict(bounds),
    "link_seconds": estimate.link_seconds,
    "estimated_step_seconds": estimate.seconds,
    "utilisation": estimate.utilisation,
    "useful_flops_per_chip": estimate.program.work.flops
    / estimate.program.chips,
    "useful_tokens": estimate.program.work.tokens,
    "collectives": [dataclasses.asdict(c) for c in estimate.collectives],
    "kernels": [
      {**dataclasses.asdict(k), "seconds": k.seconds} for k in estimate.kernels
    ],
  }


_HEADER = (
  *("program", "fits", "arguments GB", "temporaries GB", "TFLOP", "traffic GB"),
  *("accessed GB", "Mcycles", "by arithmetic ms", "by memory ms"),
  *("by cycles ms", "estimate ms", "utilisation"),
)


def _row(estimate: Estimate) -> tuple[str, ...]:
  program, compiled, bounds = (
    estimate.program,
    estimate.compiled,
    estimate.bounds,
  )
  known = (_UNKNOWN,) * 8
  if bounds is not None and estimate.traffic_bytes is not None:
    known = (
      _gb(estimate.traffic_bytes),
      _UNKNOWN
      if compiled.accessed_bytes is None
      else _gb(compiled.accessed_bytes),
      f"{(estimate.cycles or 0) / 1e6:.1f}",
      *(
        f"{1e3 * seconds:.2f}"
        for seconds in (
          bounds.arithmetic,
          bounds.memory,
          bounds.cycles,
          bounds.seconds,
        )
      ),
      f"{100 * (estimate.utilisation or 0):.1f} %",
    )
  return (
    f"{program.kind}: {program.name}",
    "yes" if estimate.fits else "NO",
    _gb(compiled.argument_bytes),
    _gb(compiled.temporary_bytes),
    f"{estimate.flops_per_chip / 1e12:.3f}",
    *known,
  )


def _collectives(estimate: Estimate) -> str:
  if not estimate.collectives:
    return ""
  rows = [("collective", "axis", "number", "MB")]
  for c in estimate.collectives:
    rows.append((c.operation, c.axis, str(c.count), f"{c.bytes / 1e6:.2f}"))
  return _titled(estimate, table.columns(rows))


def _kernels(estimate: Estimate) -> str:
  if not estimate.kernels:
    return ""
  rows = [["kernel", "calls", "products ms", "exponentials ms", "memory ms"]]
  for k in estimate.kernels:
    parts = k.product_seconds, k.exponential_seconds, k.memory_seconds
    rows.append([k.name, str(k.calls), *(f"{1e3 * s:.2f}" for s in parts)])
  return _titled(estimate, table.columns(rows))


def _titled(estimate: Estimate, text: str) -> str:
  program = estimate.program
  return f"{program.kind}: {program.name}\n{text}"


def _splits(splits: Sequence[RefreshSplit]) -> str:
  rows = [
    ("builder chips", "s for a generation", "steps between", "greatest age")
  ]
  for s in sorted(splits, key=lambda s: s.builder_chips):
    rows.append(
      (
        str(s.builder_chips),
        f"{s.seconds:.0f}",
        str(s.trainer_steps),
        f"{s.staleness_steps} steps",
      )
    )
  first = splits[0]
  return (
    f"{table.columns(rows)}\n\n{first.builder_chips} builder chips give a "
    f"generation every {first.trainer_steps} steps."
  )


def _gb(size: float) -> str:
  return f"{size / 1e9:.2f}"
