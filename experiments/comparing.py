"""Compares systems in generated worlds, one for each seed."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.data import GeneratedWorlds
from experiments.pipeline import markdown, over_seeds
from experiments.world.world import World
from realm_jax.errors import RealmError
from realm_jax.partitioning import cpu_tuning
from realm_jax.storage.json_files import write_json
from realm_jax.storage.sole_process import sole_process


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Systems, and the way to train and evaluate each of them.

  Attributes:
    name: Name of the command.
    titles: Names of the systems in the report.
    columns: Metrics in the report.
    worlds: Function that returns the worlds, given additional gin files.
    measure: Function that trains a system and returns its metrics. It gets the
      system's name, the seed's folder, the seed, the worlds, the seed's world
      and additional gin files.
  """

  name: str
  titles: Mapping[str, str]
  columns: Sequence[str]
  worlds: Callable[[Sequence[str]], GeneratedWorlds]
  measure: Callable[..., dict[str, Any]]

  @classmethod
  def of_steps(
    cls,
    name: str,
    systems: Mapping[str, tuple[str, Callable[[Any], dict[str, Any]]]],
    columns: Sequence[str],
    worlds: Callable[[Sequence[str]], GeneratedWorlds],
    steps: Callable[[Path, int, Sequence[str]], Any],
  ) -> "Comparison":
    """Compares systems that are measured by the steps in a seed's folder.

    Args:
      name, columns, worlds: As above.
      systems: Title of each system, and the function that measures it.
      steps: Function that makes the argument of these functions, from the
        seed's folder, the seed and additional gin files.
    """

    def measure(
      system: str,
      folder: Path,
      seed: int,
      worlds: GeneratedWorlds,
      world: World,
      gin_files: Sequence[str],
    ) -> dict[str, Any]:
      del worlds, world
      return systems[system][1](steps(folder, seed, gin_files))

    titles = {key: title for key, (title, _) in systems.items()}
    return cls(name, titles, columns, worlds, measure)

  def run(self) -> None:
    """Compares the systems chosen by flags; writes and prints the report."""
    cpu_tuning.disable_async_dispatch()
    cpu_tuning.keep_freed_memory()
    output_dir = Path(flags.FLAGS.output_dir)
    advice = "stop it, or choose another --output_dir"
    with sole_process(output_dir, self.name, advice=advice):
      report = self.report(
        *(output_dir, flags.FLAGS.systems, flags.FLAGS.seeds),
        flags.FLAGS.gin_file,
      )
      (output_dir / "report.md").write_text(f"{report}\n")
    print(f"\n{report}\n\nreport: {output_dir / 'report.md'}")

  def report(
    self,
    output_dir: Path,
    names: Sequence[str],
    seeds: int,
    gin_files: Sequence[str],
  ) -> str:
    """Runs systems on the worlds of all seeds, reusing finished steps.

    Raises:
      RealmError: A system is unknown.
    """
    if unknown := {*names} - {*self.titles}:
      raise RealmError(
        f"--systems={min(unknown)}; want some of {', '.join(self.titles)}"
      )
    worlds = self.worlds(gin_files)
    results: dict[str, list[dict[str, Any]]]
    results = {name: [] for name in names or self.titles}
    for seed in range(seeds):
      folder = output_dir / f"seed-{seed}"
      world: World = worlds.prepare(folder, seed)
      for name, found in results.items():
        path = folder / f"{name}.json"
        if not path.exists():
          own = self.measure(name, folder, seed, worlds, world, gin_files)
          write_json(path, own)
        found.append(json.loads(path.read_text()))
    write_json(output_dir / "report.json", results)
    rows = [["system", *self.columns]]
    for name, found in results.items():
      cells = [
        over_seeds([one[column] for one in found if column in one])
        for column in self.columns
      ]
      rows.append([self.titles[name], *cells])
    return markdown(rows)
