"""A corpus of the demo's encyclopedia, in any size."""

from pathlib import Path

from realm_jax.corpus.build import build_corpus
from realm_jax.demo_world import world

# As gin/experiments/demo/model.gin and the demo have them.
QUERY_LENGTH = 32
BLOCK_LENGTH = 96
JOINT_LENGTH = 120


def make_corpus(directory: Path, *, scale: float = 1.0) -> Path:
  """Writes articles and their corpus, and returns the corpus directory.

  Args:
    directory: an empty folder.
    scale: 1 is the demo's encyclopedia, with about 2,200 blocks.
  """
  sizes = {
    "num_people": 300,
    "num_cities": 300,
    "num_countries": 100,
    "num_rivers": 100,
    "num_companies": 200,
    "num_books": 200,
  }
  encyclopedia = world.generate(
    0, **{name: max(4, round(scale * n)) for name, n in sizes.items()}
  )
  world.write_world(directory / "world", world=encyclopedia)
  build_corpus(
    [str(directory / "world" / "articles.jsonl")],
    directory / "corpus",
    vocab="train:8000",
    block_length=BLOCK_LENGTH,
  )
  return directory / "corpus"
