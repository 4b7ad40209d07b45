"""The folder of a benchmark's runs and logs, kept if something went wrong."""

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path


class RunFolder:
  """A folder for runs and logs.

  Attributes:
    path: The folder, which is empty at first.
    is_passed: Whether the benchmark has passed, which it sets in the end.
  """

  def __init__(self, path: Path):
    self.path = path
    self.is_passed = False


def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options of a benchmark that runs jobs in a folder."""
  parser.add_argument(
    "--output_dir",
    type=Path,
    help="empty folder for runs and logs, which are kept",
  )
  parser.add_argument("--json", help="file to write the result to")


@contextlib.contextmanager
def opened(
  parser: argparse.ArgumentParser, output_dir: Path | None, *, prefix: str
) -> Iterator[RunFolder]:
  """Opens `output_dir`, or a temporary folder, removed if all is well.

  On SIGTERM the block is left, so that it can end its jobs.
  """
  if output_dir and output_dir.exists() and any(output_dir.iterdir()):
    parser.error(f"--output_dir={output_dir} is not empty; name another folder")
  signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated by SIGTERM"))
  folder = RunFolder(output_dir or Path(tempfile.mkdtemp(prefix=prefix)))
  try:
    yield folder
  finally:
    if folder.is_passed and output_dir is None:
      shutil.rmtree(folder.path)
    else:
      print(f"runs and logs are kept in {folder.path}")
