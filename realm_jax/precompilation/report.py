"""What the programs of a recipe need and take, as a table and as JSON."""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from realm_jax.console import table
from realm_jax.console.progress import Progress
from realm_jax.files.json_value import JsonValue
from realm_jax.generations.building.generation_builder import GenerationConfig
from realm_jax.precompilation import compiler
from realm_jax.precompilation.advice import advice
from realm_jax.precompilation.chips import Chip
from realm_jax.precompilation.compiler import Compiled
from realm_jax.precompilation.programs import SEARCH, STEP, Program, programs_of
from realm_jax.precompilation.topology import Topology
from realm_jax.training.config import TrainConfig

# Compilations at once; one uses several cores at times.
_THREADS = 2


@dataclasses.dataclass(frozen=True)
class Cost:
  """What one run of a program costs each chip of a slice."""

  program: Program
  compiled: Compiled
  chip: Chip

  @property
  def fits(self) -> bool:
    """Whether the memory of a chip suffices."""
    return self.compiled.total_bytes <= self.chip.memory_bytes

  @property
  def least_seconds(self) -> float | None:
    """Lower bound of the time: a roofline at the peak rates of the chip."""
    flops, accessed = self.compiled.flops, self.compiled.accessed_bytes
    if flops is None or accessed is None:
      return None
    return max(
      flops / self.chip.peak_flops, accessed / self.chip.memory_bandwidth
    )

  def json(self) -> dict[str, JsonValue]:
    """Returns the figures by name."""
    return {
      "kind": self.program.kind,
      "name": self.program.name,
      "chips": self.program.mesh.size,
      "fits": self.fits,
      **dataclasses.asdict(self.compiled),
      "least_seconds": self.least_seconds,
    }

  def row(self) -> tuple[str, ...]:
    """Returns the cells of a row of the table."""
    compiled, seconds = self.compiled, self.least_seconds
    return (
      f"{self.program.kind}: {self.program.name}",
      "yes" if self.fits else "NO",
      *(
        _scaled(size, 1e9)
        for size in (
          compiled.argument_bytes,
          compiled.output_bytes,
          compiled.temporary_bytes,
          compiled.code_bytes,
        )
      ),
      _scaled(compiled.flops, 1e12),
      _scaled(compiled.accessed_bytes, 1e9),
      _scaled(seconds, 1e-3),
    )


_HEADER = (
  *("program", "fits", "arguments GB", "results GB", "temporaries GB"),
  *("code GB", "TFLOP", "accessed GB", "at least ms"),
)


@dataclasses.dataclass(frozen=True)
class Report:
  """What a recipe costs on a slice.

  Attributes:
    topology: Name of the slice.
    chips: Number of its chips.
    costs: Costs of the programs; a training step comes first.
    advice: Settings that would make it fit.
  """

  topology: str
  chip: Chip
  chips: int
  costs: Sequence[Cost]
  advice: Sequence[str] = ()

  @property
  def fits(self) -> bool:
    """Whether all programs fit, the steps beside an exact index's vectors."""
    beside = sum(
      cost.compiled.argument_bytes
      for cost in self.costs
      if cost.program.kind == SEARCH
    )
    return all(
      cost.fits
      and (
        cost.program.kind != STEP
        or cost.compiled.total_bytes + beside <= self.chip.memory_bytes
      )
      for cost in self.costs
    )

  def json(self) -> JsonValue:
    """Returns the figures by name."""
    return {
      "topology": self.topology,
      "chips": self.chips,
      "fits": self.fits,
      "advice": list(self.advice),
      "programs": [cost.json() for cost in self.costs],
    }

  def text(self) -> str:
    """Returns the figures as a table, and whether the recipe fits."""
    chip = self.chip
    return "\n\n".join(
      [
        f"{self.topology}: {self.chips} chips, each with "
        f"{_scaled(chip.memory_bytes, 1e9)} GB for programs, "
        f"{chip.peak_flops / 1e12:.0f} TFLOP/s and "
        f"{chip.memory_bandwidth / 1e9:.0f} GB/s",
        table.columns([_HEADER, *(cost.row() for cost in self.costs)]),
        self._verdict(),
      ]
    )

  def _verdict(self) -> str:
    if self.fits:
      return "It fits."
    if all(cost.fits for cost in self.costs):
      return "It does not fit beside the vectors of an exact index."
    too_large = ", ".join(
      f"{cost.program.kind} {cost.program.name} "
      f"({_scaled(cost.compiled.total_bytes, 1e9)} of "
      f"{_scaled(self.chip.memory_bytes, 1e9)} GB)"
      for cost in self.costs
      if not cost.fits
    )
    lines = [f"It does not fit: {too_large}.", *(f"  {a}" for a in self.advice)]
    return "\n".join(lines)


def _scaled(value: float | None, unit: float) -> str:
  return "-" if value is None else f"{value / unit:.2f}"


def compile_recipe(
  recipe: TrainConfig | GenerationConfig,
  topology: Topology,
  *,
  num_blocks: int,
  cache: Path | None,
) -> Report:
  """Compiles all programs of a recipe for a slice.

  Args:
    recipe: Training run, or index builder.
    topology: Slice, whose devices need not exist.
    num_blocks: Number of blocks of the corpus.
    cache: Directory of earlier compilations, if any.

  Raises:
    ValueError: The recipe does not fit the slice's devices.
  """
  chip, chips = topology.chip, len(topology.devices)
  programs = list(programs_of(recipe, topology, num_blocks=num_blocks))
  with (
    ThreadPoolExecutor(_THREADS, "compile") as pool,
    Progress("programs compiled", total=len(programs)) as progress,
  ):
    # Tracing holds the interpreter, and compiling does not.
    waiting = [
      pool.submit(
        compiler.compile_program,
        program,
        program.lower(),
        topology,
        cache=cache,
      )
      for program in programs
    ]
    costs = []
    for program, future in zip(programs, waiting, strict=True):
      costs.append(Cost(program, future.result(), chip))
      progress.advance()
  advised: list[str] = []
  too_large = [c for c in costs if c.program.kind == STEP and not c.fits]
  if isinstance(recipe, TrainConfig) and too_large:
    advised = advice(recipe, too_large[0].compiled, chip, chips=chips)
  return Report(topology.name, chip, chips, costs, advised)
