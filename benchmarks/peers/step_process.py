"""Flags and peak memory of a process that measures a training step."""

import argparse
import resource
import sys


def sizes_parser(description: str) -> argparse.ArgumentParser:
  """Returns a parser of the sizes of a pre-training step."""
  parser = argparse.ArgumentParser(
    description=description,
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  for name, default, what in (
    ("layers", 4, "layers of each encoder"),
    ("hidden", 256, "width of each encoder"),
    ("heads", 4, "attention heads"),
    ("inner", 1024, "width of the feed-forward layers"),
    ("vocab", 30522, "wordpieces in the vocabulary"),
    ("batch", 8, "queries in a step"),
    ("candidates", 8, "candidates of a query, including the null block"),
    ("query", 64, "tokens of a query"),
    ("block", 128, "tokens of a block"),
    ("joint", 192, "tokens of a query and a block's body"),
    ("masks", 3, "masks in a query"),
    ("steps", 3, "measured steps, after one that is not measured"),
  ):
    parser.add_argument(f"--{name}", type=int, default=default, help=what)
  parser.add_argument("--dropout", type=float, default=0.1, help="dropout rate")
  return parser


def peak_memory_bytes() -> int:
  """Returns the peak memory of this process."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  # Linux counts KiB, macOS bytes.
  return peak if sys.platform == "darwin" else 1024 * peak
