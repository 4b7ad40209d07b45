"""Flags of the benchmarks that make large generations."""

import argparse
from pathlib import Path

from benchmarks.fixed_tree import fixed_tree
from realm_jax.indexes.scann.config import ScannConfig


def make_parser(description: str) -> argparse.ArgumentParser:
  """Returns a parser of the flags that say what is made, and of --json."""
  parser = argparse.ArgumentParser(
    description=description,
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument(
    "--directory",
    type=Path,
    required=True,
    help="folder of generated files, which are reused",
  )
  parser.add_argument(
    "--num_blocks", type=int, default=1_000_000, help="number of blocks"
  )
  parser.add_argument(
    "--num_leaves", type=int, default=1024, help="leaves of ScaNN"
  )
  parser.add_argument(
    "--scale",
    type=float,
    default=1.0,
    help="size of the world; 1 is the demo's",
  )
  parser.add_argument("--json", type=Path, help="file to write the figures to")
  return parser


def index_of(given: argparse.Namespace) -> ScannConfig:
  """Returns the index that the flags ask for."""
  return fixed_tree(given.num_leaves, num_leaves_searched=8, num_reordered=200)
