"""A corpus of the demo's world, of any size."""

from pathlib import Path

from experiments.world import names, world
from realm_jax import configuration
from realm_jax.corpus.build import build_corpus

# Same value as in experiments/gin/demo/model.gin.
_BLOCK_LENGTH = 36
# With fewer, some split of the questions has no two people to relate.
_MIN_OF_KIND = 32


def generated_world(scale: float) -> world.World:
  """Returns the demo's world with so many times its entities."""
  default = world.WorldConfig()
  sizes = {}
  if scale != 1:
    for name in ("num_people", "num_cities", "num_companies"):
      sizes[name] = max(_MIN_OF_KIND, round(scale * getattr(default, name)))
  recipe = "experiments/gin/demo/world.gin"
  parsed = configuration.parsed(world.WorldConfig, [recipe])
  config = parsed.build(world.WorldConfig, **sizes)
  return world.generate(config)


def make_corpus(directory: Path, *, scale: float = 1.0) -> Path:
  """Writes articles and their corpus, and returns the corpus directory.

  Args:
    directory: Folder without a corpus.
    scale: Factor for the numbers of entities; 1 gives the demo's world.
  """
  world.write_world(directory / "world", world=generated_world(scale))
  build_corpus(
    [str(directory / "world" / "articles.jsonl")],
    directory / "corpus",
    vocab="train:8000",
    block_length=_BLOCK_LENGTH,
    tagger=names.tag,
  )
  return directory / "corpus"
