"""Compares the speed, recall and memory of the indexes on the same vectors.

    python -m benchmarks.index --directory=out/index --vectors=clustered
    python -m benchmarks.index --directory=out/index --vectors=out/vectors/demo

The vectors are generated (`clustered`, `spectrum`), or those of a trained run
in a folder that `benchmarks.data.trained_vectors` has written. Compared are
ScaNN with our trees and with its own, and our exact search, with FAISS:
inverted lists of 4-bit product codes and of RaBitQ codes, with several numbers
of lists, and exact search. Each index is built in one process and searched in
another, so that the memory of the build is measured alone.
"""

import argparse
import dataclasses
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import index_vectors
from benchmarks.runs.jobs import in_new_process
from realm_jax.console import columns
from realm_jax.indexes.ground_truth import GroundTruth
from realm_jax.indexes.isolated import IsolatedIndex
from realm_jax.indexes.protocol import Blocks, BuildOptions, config_from
from realm_jax.storage.json_files import write_json

Row = dict[str, Any]

_K = 8
_THREADS = os.cpu_count() or 1
_REPEATS = 5
_RECALLS = (0.95, 0.99)
# Numbers of leaves and of lists, as multiples of the root of the blocks.
_FACTORS = (1, 2, 4, 8)
_FAISS_SEARCHES = tuple(
  {"nprobe": nprobe, "num_reordered": num_reordered}
  for nprobe in (2, 4, 8, 16, 32, 64, 128)
  for num_reordered in (50, 100, 200, 400, 800)
)
# The fastest of each list's systems is what the first one is compared with.
_COMPARED = (
  ("scann", ("faiss_pq", "faiss_rabitq")),
  ("scann", ("scann_own_builder",)),
  ("exact", ("faiss_flat",)),
)
_SYSTEMS = (
  *("scann", "scann_own_builder", "exact"),
  *("faiss_pq", "faiss_rabitq", "faiss_flat"),
)


@dataclasses.dataclass(frozen=True)
class Job:
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
    settings: Sequence[Row] = ({},)
    if system == "scann_own_builder":
      root = 2 ** round(np.log2(num_blocks) / 2)
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
  return {
    "build_seconds": seconds,
    "build_memory_gb": _peak_memory_gb(),
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


def _peak_memory_gb() -> float:
  """Returns the peak memory of this process, on Linux.

  `ru_maxrss` is not used, because a child inherits its parent's value.
  """
  status = Path("/proc/self/status").read_text()
  return 1024 * int(status.partition("VmHWM:")[2].split()[0]) / 1e9


def best(
  rows: Sequence[Row], systems: Sequence[str], recall: float
) -> Row | None:
  """Returns the fastest row of some systems that reaches a recall, if any."""
  good = (
    row
    for row in rows
    if row["system"] in systems and row["recall_at_8"] >= recall
  )
  return max(good, key=lambda row: row["queries_per_second"], default=None)


def report(rows: Sequence[Row]) -> str:
  """Formats the best row of each system at each recall, and the ratios."""
  heads = ("recall@8", "queries/s", "build s", "load s", "build GB", "settings")
  lines: list[Sequence[object]] = [("system", *heads)]
  ratios = []
  for recall in _RECALLS:
    lines.append((f"recall@8 ≥ {recall}", *("" for _ in heads)))
    for system in dict.fromkeys(row["system"] for row in rows):
      row = best(rows, [system], recall)
      if row is None:
        lines.append((system, "not reached", *("" for _ in heads[1:])))
        continue
      settings = {**row["parameters"], "num_leaves": row["num_leaves"]}
      shown = ("factory", "nprobe", "num_reordered", "num_leaves")
      figures = (
        f"{row['recall_at_8']:.3f}",
        f"{row['queries_per_second']:,.0f}",
        f"{row['build_seconds']:.1f}",
        f"{row['load_seconds']:.1f}",
        f"{row['build_memory_gb']:.2f}",
        " ".join(str(settings[n]) for n in shown if settings.get(n)),
      )
      lines.append((system, *figures))
    for ours, others in _COMPARED:
      a, b = best(rows, [ours], recall), best(rows, others, recall)
      if a and b:
        ratio = a["queries_per_second"] / b["queries_per_second"]
        against = f"{ours} against {b['system']}, recall@8 ≥ {recall}"
        ratios.append(f"{against}: {ratio:.2f}")
  return "\n".join([columns(lines), *ratios])


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument(
    "--directory",
    type=Path,
    required=True,
    help="folder for vectors and indexes",
  )
  parser.add_argument(
    "--vectors", default="clustered", help="clustered, spectrum, or a folder"
  )
  parser.add_argument(
    "--num_blocks", type=int, default=1_000_000, help="of generated vectors"
  )
  parser.add_argument(
    "--system",
    action="append",
    choices=_SYSTEMS,
    help="index to measure, repeatable; by default all",
  )
  parser.add_argument("--json", type=Path, help="file to write the figures to")
  given = parser.parse_args(arguments)
  folder = Path(given.vectors)
  if given.vectors in index_vectors.GENERATED:
    folder = given.directory / f"{given.vectors}-{given.num_blocks}"
    index_vectors.generate(given.vectors, folder, given.num_blocks)
  measured: list[Row] = []
  num_blocks, dim = index_vectors.vectors(folder).shape
  result = {"vectors": folder.name, "num_blocks": num_blocks, "dim": dim}
  for system in given.system or _SYSTEMS:
    for job in jobs_of(system, folder, given.directory):
      measured += [{"system": system, **row} for row in rows(job)]
    print(f"{system} has been measured", file=sys.stderr, flush=True)
    # What is measured is kept if a later system does not end.
    if given.json:
      write_json(given.json, {**result, "rows": measured})
  print(f"{folder.name}: {num_blocks:,} blocks of {dim} dimensions")
  print(report(measured))


if __name__ == "__main__":
  main()
