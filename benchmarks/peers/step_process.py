"""What a process that measures a training step is given, and its memory."""

import argparse
import resource
import sys


def sizes_parser(description: str) -> argparse.ArgumentParser:
  """Flags for the sizes of a pre-training step."""
  parser = argparse.ArgumentParser(
    description=description,
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  for name, default, what in (
    ("layers", 4, "of each encoder"),
    ("hidden", 256, "its width"),
    ("heads", 4, "of attention"),
    ("inner", 1024, "width of the feed-forward layers"),
    ("vocab", 30522, "wordpieces"),
    ("batch", 8, "queries in a step"),
    ("candidates", 8, "of a query, the null block among them"),
    ("query", 64, "tokens of a query"),
    ("block", 128, "tokens of a block"),
    ("joint", 192, "tokens of a query and a block's body"),
    ("masks", 3, "scored in a query"),
    ("steps", 3, "to be timed, after one that is not"),
  ):
    parser.add_argument(f"--{name}", type=int, default=default, help=what)
  parser.add_argument("--dropout", type=float, default=0.1, help="rate")
  return parser


def peak_memory_bytes() -> int:
  """The most memory that this process has had."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  # Linux counts KiB, macOS bytes.
  return peak if sys.platform == "darwin" else 1024 * peak
