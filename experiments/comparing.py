"""Compares systems in generated worlds, one for each seed."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from absl import flags

from experiments.data import CORPUS, GeneratedWorlds
from experiments.pipeline import Step, Steps, markdown, over_seeds
from experiments.world.world import World
from realm_jax.errors import RealmError
from realm_jax.partitioning import cpu_tuning
from realm_jax.storage.json_files import write_json
from realm_jax.storage.sole_process import sole_process

_GIN = Path("experiments/gin")


class Seed(NamedTuple):
  """What a system is measured with.

  Attributes:
    folder: Folder of the seed.
    number: Seed of the world and of everything that is trained.
    worlds: Worlds of all seeds.
    world: World of this seed.
    gin_files: Additional gin files.
  """

  folder: Path
  number: int
  worlds: GeneratedWorlds
  world: World
  gin_files: Sequence[str]


class SystemSteps(Steps):
  """Steps in the folder of a seed, with the demo's recipes and others.

  Attributes:
    gin_folders: Folders of recipes in experiments/gin. A recipe replaces one of
      the same name in an earlier folder.
    after_recipes: Gin files that are applied after each recipe.
  """

  gin_folders: Sequence[str] = ("demo",)
  after_recipes: ClassVar[Sequence[str]] = ()

  def __init__(self, folder: Path, seed: int, gin_files: Sequence[str]):
    recipes = {
      path.stem: [str(path), *self.after_recipes, *gin_files]
      for name in self.gin_folders
      for path in (_GIN / name).glob("*.gin")
    }
    trained = [n for n in recipes if not n.startswith(("build", "eval"))]
    always = {name: {"SEED": seed} for name in trained}
    super().__init__(folder, recipes, str(folder / CORPUS), always)

  def start(self) -> tuple[Step, Step]:
    """Returns the inverse-cloze retriever, and a reader of what it finds."""
    retriever = self.train("inverse_cloze", "inverse_cloze")
    reading = self.train("reading", "reading")
    name = "reading_retrieved"
    builder = self.first_snapshot(name)
    return retriever, self.train(name, name, retriever, reading, builder)


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Systems, and the way to train and evaluate each of them.

  Attributes:
    name: Name of the command.
    titles: Names of the systems in the report.
    columns: Metrics in the report.
    worlds: Function that returns the worlds, given additional gin files.
    measure: Function that trains the system with a name, and returns its
      metrics.
  """

  name: str
  titles: Mapping[str, str]
  columns: Sequence[str]
  worlds: Callable[[Sequence[str]], GeneratedWorlds]
  measure: Callable[[str, Seed], Mapping[str, Any]]

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
    for number in range(seeds):
      folder = output_dir / f"seed-{number}"
      world = worlds.prepare(folder, number)
      seed = Seed(folder, number, worlds, world, gin_files)
      for name, of_seeds in results.items():
        path = folder / f"{name}.json"
        if not path.exists():
          write_json(path, self.measure(name, seed))
        of_seeds.append(json.loads(path.read_text()))
    write_json(output_dir / "report.json", results)
    rows = [["system", *self.columns]]
    for name, of_seeds in results.items():
      cells = [
        over_seeds([metrics[c] for metrics in of_seeds if c in metrics])
        for c in self.columns
      ]
      rows.append([self.titles[name], *cells])
    return markdown(rows)
