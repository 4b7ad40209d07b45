"""The runs of an ablation, and where their results are."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from realm_jax.stage_commands import StageCommand


@dataclasses.dataclass
class Run:
  """A command with an output folder, and perhaps a sidecar.

  Attributes:
    seed: Its seed.
    name: Its folder in the seed's.
    folder: The same as a path: MODEL_DIR, or OUTPUT_DIR of an evaluation.
    command: Command that trains or evaluates.
    starts_from: Names of the runs that it reads.
    sidecar: Command that builds its index meanwhile, if it needs one.
    num_steps: Steps of a training run; None for an evaluation.
    rows: Names of the rows that use it.
  """

  seed: int
  name: str
  folder: Path
  command: StageCommand
  starts_from: tuple[str, ...]
  sidecar: StageCommand | None = None
  num_steps: int | None = None
  rows: list[str] = dataclasses.field(default_factory=list)


class RowResult(NamedTuple):
  """Where the results of a row with one seed are: folders of evaluations."""

  answers: Path
  zero_shot: Path
  sentences: Path | None


@dataclasses.dataclass(frozen=True)
class Plan:
  """The runs of all seeds, in an order in which they can be made.

  Attributes:
    runs: Runs; those of one seed stand together.
    results: Results by row, one for each seed.
    never_refreshed: Names of rows whose index is never refreshed.
  """

  runs: Sequence[Run]
  results: dict[str, list[RowResult]]
  never_refreshed: frozenset[str]
