"""A corpus of the demo's world, of any size."""

import dataclasses
from pathlib import Path

from experiments.data import CORPUS, GeneratedWorlds
from experiments.demo.stages import demo_worlds
from experiments.world import world

# With fewer, some split of the questions would lack two people to relate.
_MIN_OF_KIND = 32


def generated_world(scale: float) -> world.World:
  """Returns the demo's world with `scale` times its entities."""
  return world.generate(_worlds(scale).world)


def make_corpus(directory: Path, *, scale: float = 1.0) -> Path:
  """Writes articles and their corpus, and returns the corpus directory.

  Args:
    directory: Folder without a corpus.
    scale: Factor for the numbers of entities; 1 is the demo's world.
  """
  worlds = _worlds(scale)
  worlds.prepare(directory, worlds.world.seed)
  return directory / CORPUS


def _worlds(scale: float) -> GeneratedWorlds:
  worlds = demo_worlds()
  sizes = {
    name: max(_MIN_OF_KIND, round(scale * getattr(worlds.world, name)))
    for name in ("num_people", "num_cities", "num_companies")
  }
  scaled = dataclasses.replace(worlds.world, **sizes)
  return dataclasses.replace(worlds, world=scaled)
