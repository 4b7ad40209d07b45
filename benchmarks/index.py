"""Compares the speed, recall and memory of the indexes on the same vectors.

    python -m benchmarks.index --directory=out/index
    python -m benchmarks.index --directory=out/index --vectors=out/vectors/demo

The vectors are --num_blocks generated ones, or those of a trained run in a
folder that `benchmarks.data.trained_vectors` has written. Compared are ScaNN
with our trees and with its own, and our exact search, with FAISS: inverted
lists of 4-bit product codes and of RaBitQ codes, with several numbers of lists,
and exact search; --system chooses some. Each index is built in one process and
searched in another, so that the memory of the build is measured alone.
"""

import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import flags
from benchmarks.data import index_vectors
from benchmarks.runs.jobs import in_new_process
from realm_jax.console import columns
from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import Blocks, BuildOptions, config_from
from realm_jax.storage.json_files import write_json

Row = dict[str, Any]

_K = 8
_REPEATS = 5
_RECALLS = (0.95, 0.99)
# Numbers of leaves and of lists, as multiples of the root of the blocks.
_FACTORS = (1, 2, 4, 8)
_FAISS_SEARCHES = tuple(
  {"nprobe": nprobe, "num_reordered": num_reordered}
  for nprobe in (2, 4, 8, 16, 32, 64, 128)
  for num_reordered in (50, 100, 200, 400, 800)
)
_SYSTEMS = (
  *("scann", "scann_own_builder", "exact"),
  *("faiss_pq", "faiss_rabitq", "faiss_flat"),
)


class Job(NamedTuple):
  """Measurement of one index.

  Attributes:
    folder: Folder of vectors and queries.
    saved: Folder of the built index.
    kind: Kind of the index, as a generation has it.
    parameters: Configuration that the index is built with.
    searches: Changes of it, with each of which the index is searched.
  """

  folder: Path
  saved: Path
  kind: str
  parameters: Row
  searches: Sequence[Row] = ({},)

  def blocks(self) -> Blocks:
    """Returns the vectors as the argument of an index."""
    vectors = index_vectors.vectors(self.folder)
    return Blocks(num_blocks=len(vectors), vectors=vectors)


def jobs_of(system: str, folder: Path, directory: Path) -> Iterator[Job]:
  """Yields the indexes of one of `_SYSTEMS`, each with its settings.

  Args:
    system: Name of the system.
    folder: Folder of vectors and queries.
    directory: Folder for the built index.
  """
  num_blocks, dim = index_vectors.vectors(folder).shape
  paths = folder, directory / "index"
  common: Row = {"brute_force_below": 0}
  if system == "exact":
    yield Job(*paths, "exact", {})
  elif system == "faiss_flat":
    yield Job(*paths, "faiss", {"factory": "Flat", **common})
  elif system.startswith("faiss"):
    codes = f"PQ{dim // 2}x4fs" if system == "faiss_pq" else "RaBitQfs"
    for factor in _FACTORS:
      factory = f"IVF{round(factor * num_blocks**0.5)},{codes},RFlat"
      parameters = {"factory": factory, **common}
      yield Job(*paths, "faiss", parameters, _FAISS_SEARCHES)
  else:
    root = 2 ** round(np.log2(num_blocks) / 2)
    settings: list[Row] = [{}]
    if system == "scann_own_builder":
      settings = [
        {"builder": "stock", "num_leaves": f * root} for f in _FACTORS
      ]
    for setting in settings:
      for recall in _RECALLS:
        target = {"recall_target": recall, "below_target": True}
        yield Job(*paths, "scann", {**common, **target, **setting})


def rows(job: Job) -> list[Row]:
  """Builds the index in one process, then loads and searches it in another."""
  shutil.rmtree(job.saved, ignore_errors=True)
  try:
    built = in_new_process(build, job)
    return [{**built, **row} for row in in_new_process(search, job)]
  finally:
    shutil.rmtree(job.saved, ignore_errors=True)


def build(job: Job) -> Row:
  """Builds the index and writes it to files."""
  tuning, _ = index_vectors.queries(job.folder)
  options = BuildOptions(directory=job.saved, queries=tuning)
  start = time.perf_counter()
  index = config_from(job.kind, job.parameters).build(job.blocks(), options)
  seconds = time.perf_counter() - start
  # `ru_maxrss` is not used, because a child inherits its parent's value.
  status = Path("/proc/self/status").read_text()
  peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
  return {
    "build_seconds": seconds,
    "build_memory_gb": peak / 1e9,
    "num_leaves": index.report.get("num_leaves"),
  }


def search(job: Job) -> list[Row]:
  """Loads the index, and searches all queries in a batch, with each setting.

  As in a trainer, ScaNN searches in a process of its own. `load_seconds` ends
  with the first search, which reads the mapped files and compiles.
  """
  blocks, (_, queries) = job.blocks(), index_vectors.queries(job.folder)
  truth = GroundTruth(blocks.embedded(), queries, _K)
  searches, load_seconds = [], 0.0
  for setting in job.searches:
    parameters = {**job.parameters, **setting}
    config = config_from(job.kind, parameters)
    start = time.perf_counter()
    if job.kind == "scann":
      index = IsolatedIndex(config, job.saved, blocks)
    else:
      index = config.load(job.saved, blocks)
    found = index.search(queries, _K)
    load_seconds = load_seconds or time.perf_counter() - start
    seconds = []
    for _ in range(_REPEATS):
      start = time.perf_counter()
      index.search(queries, _K)
      seconds.append(time.perf_counter() - start)
    searches.append(
      {
        "recall_at_8": truth.recall(found),
        "queries_per_second": len(found.rows) / statistics.median(seconds),
        "load_seconds": load_seconds,
        "parameters": parameters,
      }
    )
  return searches


def report(measured: Sequence[Row]) -> str:
  """Formats the fastest row of each system that reaches each recall."""
  names = ("system", "recall_at_8", "queries_per_second", "build_seconds")
  names += ("load_seconds", "build_memory_gb", "num_leaves", "parameters")
  lines: list[list[object]] = [["wanted", *names]]
  for recall in _RECALLS:
    best: dict[str, Row] = {}
    for row in sorted(measured, key=lambda row: row["queries_per_second"]):
      if row["recall_at_8"] >= recall:
        best[row["system"]] = row
    lines += [[recall, *(row[n] for n in names)] for row in best.values()]
  return columns(lines)


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  given = flags.parse(
    __doc__,
    arguments,
    directory=Path,
    vectors=None,
    num_blocks=1_000_000,
    system=_SYSTEMS,
  )
  folder = given.vectors or given.directory / f"vectors-{given.num_blocks}"
  if given.vectors is None:
    index_vectors.generate(folder, given.num_blocks)
  measured: list[Row] = []
  for system in given.system:
    for job in jobs_of(system, folder, given.directory):
      measured += [{"system": system, **row} for row in rows(job)]
    print(f"{system} has been measured", file=sys.stderr, flush=True)
    # What is measured is kept if a later system does not end.
    if given.json:
      write_json(given.json, {"vectors": folder.name, "rows": measured})
  print(report(measured))


if __name__ == "__main__":
  main()
